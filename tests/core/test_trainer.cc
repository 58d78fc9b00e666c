// trainer.h: schedule, order, control and statistics computed by hand; whole epochs on several numbers of threads. The
// Python tests compare single steps with PyTorch.
#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "check.h"
#include "softwood/trainer.h"

using namespace softwood;

namespace {

bool near(double a, double b, double tolerance = 1e-12) { return std::abs(a - b) <= tolerance * (1 + std::abs(b)); }

void check_schedule() {
  const Schedule schedule{.learning_rate = 2,
                          .gamma = 1,
                          .gamma_end = 0.01,
                          .anneal_begin = 0.2,
                          .anneal_end = 0.6,
                          .warmup = 0.1,
                          .cosine = true,
                          .n_steps = 101};
  CHECK(near(schedule.learning_rate_at(0), 0.2));
  CHECK(near(schedule.learning_rate_at(9), 2));
  CHECK(near(schedule.learning_rate_at(10), 2));
  CHECK(near(schedule.learning_rate_at(55), 1 + std::cos(std::acos(-1.0) * 45 / 91)));
  CHECK(schedule.learning_rate_at(100) > 0 && schedule.learning_rate_at(100) < 0.001);
  CHECK(near(schedule.learning_rate_at(1000), 0));
  CHECK(schedule.gamma_at(0) == 1 && schedule.gamma_at(20) == 1);
  CHECK(near(schedule.gamma_at(40), 0.1));
  CHECK(schedule.gamma_at(60) == 0.01 && schedule.gamma_at(100) == 0.01);
}

void check_order() {
  std::vector<std::int64_t> order(100), again(100), other(100), sorted(100);
  shuffled_order(7, 3, order);
  shuffled_order(7, 3, again);
  CHECK(order == again);
  for (const auto& [seed, epoch] : {std::pair{7, 4}, std::pair{8, 3}}) {
    shuffled_order(seed, epoch, other);
    CHECK(order != other);
  }
  sorted = order;
  std::sort(sorted.begin(), sorted.end());
  for (std::int64_t i = 0; i < 100; ++i) CHECK(sorted[i] == i);
  // Each value is equally likely at each of 4 positions: about 1000 times each in 4000 epochs.
  int count[4][4] = {};
  std::vector<std::int64_t> four(4);
  for (std::int64_t epoch = 0; epoch < 4000; ++epoch) {
    shuffled_order(1, epoch, four);
    for (int i = 0; i < 4; ++i) ++count[i][four[i]];
  }
  for (const auto& row : count) {
    for (const int c : row) CHECK(std::abs(c - 1000) < 120);
  }
}

void check_control() {
  CHECK(!Control(std::numeric_limits<double>::infinity()).should_stop());
  CHECK(Control(0).should_stop());
  Control stopped(1e6);
  stopped.stop();
  CHECK(stopped.should_stop());
  int n_polls = 0;
  Control polled(1e6, [&] { return ++n_polls == 2; });
  CHECK(!polled.should_stop() && n_polls == 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  CHECK(!polled.should_stop() && n_polls == 1);
  CHECK(!polled.should_stop() && n_polls == 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  CHECK(polled.should_stop() && polled.should_stop());
  CHECK(n_polls == 2);
}

void check_statistics() {
  std::mt19937 random(0);
  std::normal_distribution<float> normal(1000, 2);
  const std::int64_t n = 20000, p = 3;
  std::vector<float> x(n * p);
  for (float& v : x) v = normal(random);
  std::vector<std::int64_t> rows;
  for (std::int64_t i = n - 1; i >= 0; i -= 2) rows.push_back(i);
  const Samples<float> samples{{x.data(), n, p}, nullptr, nullptr, rows.data(), std::int64_t(rows.size())};
  double mean[3], variance[3], mean_on_three[3], variance_on_three[3];
  column_statistics(samples, p, mean, variance, 1);
  column_statistics(samples, p, mean_on_three, variance_on_three, 3);
  for (std::int64_t f = 0; f < p; ++f) {
    double sum = 0, squares = 0;
    for (const std::int64_t i : rows) sum += double(x[i * p + f]);
    const double centre = sum / double(rows.size());
    for (const std::int64_t i : rows) squares += std::pow(double(x[i * p + f]) - centre, 2);
    CHECK(near(mean[f], centre) && near(variance[f], squares / double(rows.size()), 1e-9));
    CHECK(mean[f] == mean_on_three[f] && variance[f] == variance_on_three[f]);
  }
}

// A member with all its arrays: 3 classes by the signs of two features.
struct Problem {
  static constexpr std::int64_t m = 4, p = 6, k = 3, n = 300;
  static constexpr int depth = 4;
  std::vector<float> x = std::vector<float>(n * p), y = std::vector<float>(n);
  std::vector<float> split_weight, leaf_weight, scale, shift, offset, mean, variance;
  std::vector<std::vector<float>> moments;
  std::unique_ptr<Trainer<float>> trainer;

  explicit Problem(std::uint64_t seed, CustomLoss<float> custom = {}) {
    std::mt19937 random(static_cast<unsigned>(seed));
    std::normal_distribution<float> normal;
    for (float& v : x) v = normal(random);
    for (std::int64_t i = 0; i < n; ++i) y[i] = float(x[i * p] > 0) + float(x[i * p + 1] > 0);
    const auto fill = [&](std::vector<float>& array, std::int64_t size) {
      array.resize(size);
      for (float& v : array) v = 0.3f * normal(random);
    };
    fill(split_weight, m * 15 * p);
    fill(leaf_weight, m * 16 * k);
    scale.assign(p, 1);
    shift.assign(p, 0);
    offset.assign(k, 0);
    mean.assign(p, 0);
    variance.assign(p, 1);
    moments.reserve(8);
    const auto parameter = [&](std::vector<float>& value) {
      moments.emplace_back(value.size());
      moments.emplace_back(value.size());
      return Parameter<float>{value.data(), moments[moments.size() - 2].data(), moments.back().data(), nullptr,
                              value.data()};
    };
    Parameters<float> parameters{};
    parameters.split_weight = parameter(split_weight);
    parameters.leaf_weight = parameter(leaf_weight);
    parameters.scale = parameter(scale);
    parameters.shift = parameter(shift);
    parameters.offset = offset.data();
    parameters.mean = mean.data();
    parameters.variance = variance.data();
    MemberSettings<float> settings{.n_trees = m,
                                   .n_features = p,
                                   .depth = depth,
                                   .activation = Activation::smooth_step,
                                   .normalisation = Normalisation::batch,
                                   .normalisation_epsilon = 1e-5,
                                   .batch_size = 32,
                                   .seed = seed,
                                   .schedule = {0.02, 1, 1, 0, 1, 0.1, true, 200},
                                   .adam = {Updates::automatic, 0.9, 0.999, 1e-8, 0, 0, 0, 0},
                                   .loss = {LossKind::cross_entropy, k, 1}};
    if (custom) {
      settings.loss.kind = LossKind::custom;
      settings.loss.custom = std::move(custom);
    }
    const Samples<float> train{{x.data(), n, p}, y.data(), nullptr, nullptr, 200};
    validation_rows.resize(100);
    for (std::int64_t i = 0; i < 100; ++i) validation_rows[i] = 200 + i;
    const Samples<float> validation{{x.data(), n, p}, y.data(), nullptr, validation_rows.data(), 100};
    trainer = std::make_unique<Trainer<float>>(std::move(settings), parameters, train, validation);
  }
  std::vector<std::int64_t> validation_rows;
};

std::vector<Trainer<float>*> trainers_of(std::vector<Problem>& problems) {
  std::vector<Trainer<float>*> trainers;
  for (Problem& problem : problems) trainers.push_back(problem.trainer.get());
  return trainers;
}

void check_epochs_on_any_number_of_threads() {
  std::vector<std::vector<float>> first_result;
  for (const int n_threads : {1, 2, 5}) {
    std::vector<Problem> problems;
    for (std::uint64_t seed = 0; seed < 3; ++seed) problems.emplace_back(seed);
    const auto trainers = trainers_of(problems);
    Control control(1e6);
    std::vector<EpochOutcome> outcomes;
    double at_first = 0;
    for (std::int64_t epoch = 0; epoch < 20; ++epoch) {
      outcomes = run_epoch<float>(trainers, epoch, control, n_threads);
      if (epoch == 0) at_first = outcomes[0].validation_loss;
    }
    for (const EpochOutcome& outcome : outcomes) {
      CHECK(outcome.status == EpochOutcome::Status::completed && outcome.steps_done == 7);
      CHECK(outcome.mean_reachable_leaves >= 1 && outcome.mean_reachable_leaves <= 16);
    }
    CHECK(outcomes[0].validation_loss < 0.6 * at_first);
    CHECK(problems[0].trainer->adam_step == 140);
    for (std::size_t i = 0; i < problems.size(); ++i) {
      if (n_threads == 1)
        first_result.push_back(problems[i].split_weight);
      else
        CHECK(problems[i].split_weight == first_result[i]);
    }
  }
}

void check_stop_and_failures() {
  Problem problem(0);
  Control over(0);
  const std::vector<float> before = problem.split_weight;
  const EpochOutcome outcome = problem.trainer->run_epoch(0, over, 1);
  CHECK(outcome.status == EpochOutcome::Status::stopped && outcome.steps_done == 0);
  CHECK(std::isnan(outcome.validation_loss) && problem.split_weight == before);

  Problem diverging(0, [](const float*, const float*, const float*, std::int64_t n, float* gradient) {
    std::fill_n(gradient, n * 3, std::numeric_limits<float>::quiet_NaN());
    return 0.0;
  });
  Control control(1e6);
  CHECK(diverging.trainer->run_epoch(0, control, 1).status == EpochOutcome::Status::not_finite);
  CHECK(diverging.split_weight == before);

  std::vector<Problem> problems;
  problems.emplace_back(0);
  problems.emplace_back(1, [](const float*, const float*, const float*, std::int64_t, float*) -> double {
    throw std::runtime_error("from the loss");
  });
  bool thrown = false;
  try {
    run_epoch<float>(trainers_of(problems), 0, control, 2);
  } catch (const std::runtime_error&) {
    thrown = true;
  }
  CHECK(thrown);
}

// The caller owns the rows and may change them; an index past the table is noticed.
void check_changed_rows() {
  for (const std::int64_t changed : {std::int64_t{-1}, Problem::n, Problem::n - 1}) {
    Problem problem(0);
    problem.validation_rows[3] = changed;
    Control control(1e6);
    bool refused = false;
    try {
      problem.trainer->run_epoch(0, control, 1);
    } catch (const std::out_of_range&) {
      refused = true;
    }
    CHECK(refused == (changed < 0 || changed >= Problem::n));
  }
}

}  // namespace

int main() {
  check_schedule();
  check_order();
  check_control();
  check_statistics();
  check_epochs_on_any_number_of_threads();
  check_stop_and_failures();
  check_changed_rows();
  return softwood::testing::report();
}

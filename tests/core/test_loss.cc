// loss.h: values computed by hand, gradients against finite differences, and class numbers out of range.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <stdexcept>
#include <vector>

#include "check.h"
#include "softwood/loss.h"

using softwood::Loss;
using softwood::LossKind;

namespace {

Loss<double> make(LossKind kind, std::int64_t n_outputs, std::int64_t n_targets) {
  Loss<double> loss{kind, n_outputs, n_targets};
  loss.quantiles = {0.2, 0.7};
  loss.power = 1.3;
  loss.delta = 0.5;
  return loss;
}

bool near(double a, double b, double tolerance = 1e-12) { return std::abs(a - b) <= tolerance; }

double value(const Loss<double>& loss, std::vector<double> scores, std::vector<double> targets) {
  return loss.evaluate(scores.data(), targets.data(), nullptr, 1, 1.0, nullptr);
}

void check_values() {
  CHECK(near(value(make(LossKind::cross_entropy, 2, 1), {0.0, std::log(3.0)}, {1}), std::log(4.0 / 3)));
  CHECK(near(value(make(LossKind::binary_cross_entropy, 1, 1), {std::log(3.0)}, {1}), std::log(4.0 / 3)));
  CHECK(near(value(make(LossKind::squared_error, 2, 2), {1, 2}, {2, 5}), 5));
  CHECK(near(value(make(LossKind::absolute_error, 2, 2), {1, 2}, {2, 5}), 2));
  CHECK(near(value(make(LossKind::huber, 1, 1), {0.4}, {0}), 0.08));
  CHECK(near(value(make(LossKind::huber, 1, 1), {-2.5}, {0}), 0.5 * 2.25));
  CHECK(near(value(make(LossKind::quantile, 2, 1), {1, 1}, {3}), (0.2 * 2 + 0.7 * 2) / 2));
  CHECK(near(value(make(LossKind::quantile, 2, 1), {1, 1}, {0}), (0.8 + 0.3) / 2));
  CHECK(near(value(make(LossKind::poisson, 1, 1), {std::log(2.0)}, {3}), 2 - 3 * std::log(2.0)));
  CHECK(near(value(make(LossKind::gamma, 1, 1), {std::log(2.0)}, {3}), 1.5 + std::log(2.0)));
  CHECK(near(value(make(LossKind::tweedie, 1, 1), {0}, {3}), 1 / 0.7 + 3 / 0.3));
}

void check_shares() {
  const auto loss_of = [](const std::vector<double>& target) {
    return value(make(LossKind::cross_entropy, 3, std::int64_t(target.size())), {1, 2, -1}, target);
  };
  CHECK(near(loss_of({0, 1, 0}), loss_of({1})));
  CHECK(near(loss_of({0.25, 0.75, 0}), 0.25 * loss_of({0}) + 0.75 * loss_of({1})));
}

void check_extreme_scores() {
  CHECK(near(value(make(LossKind::cross_entropy, 3, 1), {1e4, -1e4, 0}, {0}), 0));
  CHECK(near(value(make(LossKind::cross_entropy, 3, 1), {1e4, -1e4, 0}, {1}), 2e4));
  CHECK(near(value(make(LossKind::binary_cross_entropy, 1, 1), {-1e4}, {1}), 1e4));
  CHECK(near(value(make(LossKind::binary_cross_entropy, 1, 1), {1e4}, {1}), 0));
}

void check_gradient(Loss<double> loss, double label_smoothing) {
  loss.label_smoothing = label_smoothing;
  const std::int64_t n = 20, k = loss.n_outputs, t = loss.n_targets;
  std::mt19937 random(1);
  std::uniform_real_distribution<double> uniform(0.1, 2);
  std::vector<double> scores(n * k), targets(n * t), weight(n), gradient(n * k), unused(n * k);
  for (double& s : scores) s = uniform(random) - 1;
  for (double& y : targets) y = loss.kind == LossKind::cross_entropy ? double(random() % k) : uniform(random);
  if (loss.kind == LossKind::cross_entropy && t > 1) {
    for (std::int64_t i = 0; i < n; ++i) {
      const auto row = targets.begin() + i * t;
      for (std::int64_t j = 0; j < t; ++j) row[j] = uniform(random);
      const double sum = std::accumulate(row, row + t, 0.0);
      std::for_each(row, row + t, [sum](double& share) { share /= sum; });
    }
  }
  for (double& w : weight) w = uniform(random);
  const auto total = [&] { return loss.evaluate(scores.data(), targets.data(), weight.data(), n, 1.0, nullptr); };
  const double with_gradient = loss.evaluate(scores.data(), targets.data(), weight.data(), n, 0.25, gradient.data());
  CHECK(with_gradient == total());
  for (std::int64_t i = 0; i < n * k; ++i) {
    const double before = scores[i], h = 1e-6;
    scores[i] = before + h;
    const double above = total();
    scores[i] = before - h;
    const double below = total();
    scores[i] = before;
    CHECK(near(gradient[i], 0.25 * (above - below) / (2 * h), 1e-8));
  }
}

void check_no_gradient_where_the_target_is_met() {
  double gradient = 1;
  const double score = 0.5, target = 0.5;
  for (const LossKind kind : {LossKind::absolute_error, LossKind::huber, LossKind::squared_error}) {
    make(kind, 1, 1).evaluate(&score, &target, nullptr, 1, 1.0, &gradient);
    CHECK(gradient == 0);
  }
}

void check_class_numbers() {
  const double scores[] = {1, 2, 3};
  for (const double label : {-1.0, 0.0, 2.0, 3.0, 1e30}) {
    bool refused = false;
    try {
      make(LossKind::cross_entropy, 3, 1).evaluate(scores, &label, nullptr, 1, 1.0, nullptr);
    } catch (const std::out_of_range&) {
      refused = true;
    }
    CHECK(refused == (label < 0 || label >= 3));
  }
}

void check_custom() {
  Loss<double> loss = make(LossKind::custom, 2, 1);
  loss.custom = [](const double* scores, const double*, const double* weight, std::int64_t n, double* gradient) {
    if (gradient != nullptr) gradient[0] = scores[0] * weight[0];
    return double(n);
  };
  const double scores[] = {3, 4}, target = 0;
  double gradient[2] = {0, 0};
  CHECK(loss.evaluate(scores, &target, nullptr, 1, 0.5, gradient) == 1);
  CHECK(gradient[0] == 3);  // not scaled
}

}  // namespace

int main() {
  check_values();
  check_shares();
  check_extreme_scores();
  for (const double smoothing : {0.0, 0.3}) {
    check_gradient(make(LossKind::cross_entropy, 4, 1), smoothing);
    check_gradient(make(LossKind::cross_entropy, 4, 4), smoothing);
    check_gradient(make(LossKind::binary_cross_entropy, 2, 2), smoothing);
  }
  for (const LossKind kind : {LossKind::squared_error, LossKind::absolute_error, LossKind::huber, LossKind::poisson,
                              LossKind::gamma, LossKind::tweedie}) {
    check_gradient(make(kind, 3, 3), 0);
  }
  check_gradient(make(LossKind::quantile, 6, 3), 0);
  check_no_gradient_where_the_target_is_met();
  check_class_numbers();
  check_custom();
  return softwood::testing::report();
}

// One step: gather the batch, normalise it, trees, loss, backward pass, optimiser. During an epoch only the tape
// allocates memory, from its pool.
#include "softwood/trainer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "batch_norm.h"
#include "metric.h"
#include "optimizer.h"
#include "softwood/thread_pool.h"

namespace softwood {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
constexpr std::int64_t kEvaluationRows = 1024;  // at a time
constexpr std::int64_t kReachabilityRows = 32;  // enough to follow the mean over epochs

// Contiguous copies of rows of a table, with their targets and weights.
template <typename T>
struct Batch {
  std::vector<T> x, normalised, targets, weight, scores;

  void resize(std::int64_t n, std::int64_t n_features, const Loss<T>& loss, bool weighted) {
    x.resize(n * n_features);
    normalised.resize(n * n_features);
    targets.resize(n * loss.n_targets);
    weight.resize(weighted ? n : 0);
    scores.resize(n * loss.n_outputs);
  }

  // Rows number(begin), ..., number(end - 1) of the table of the samples.
  template <typename Number>
  void gather(const Samples<T>& samples, std::int64_t n_features, std::int64_t n_targets, std::int64_t begin,
              std::int64_t end, const Number& number) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t row = number(i), to = i - begin;
      samples.read(row, n_features, x.data() + to * n_features);
      for (std::int64_t t = 0; t < n_targets; ++t) targets[to * n_targets + t] = samples.targets[row * n_targets + t];
      if (samples.weight != nullptr) weight[to] = samples.weight[row];
    }
  }

  const T* weights(const Samples<T>& samples) const { return samples.weight != nullptr ? weight.data() : nullptr; }
};

template <typename T>
void add_offset(const T* offset, std::int64_t n, std::int64_t k, T* scores) {
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t j = 0; j < k; ++j) scores[i * k + j] += offset[j];
  }
}

}  // namespace

template <typename T>
struct Trainer<T>::State {
  MemberSettings<T> settings;
  Parameters<T> parameters;
  Samples<T> train, validation;
  BatchNorm<T> batch_norm;
  Optimizer<T> optimizer;
  std::vector<std::int64_t> order;
  Batch<T> batch, held_out;
  std::vector<T> gradient;        // of the loss, with respect to the scores
  std::vector<T> input_gradient;  // of the inputs of the trees; seldom needed
  Tape<T> tape;

  State(MemberSettings<T> settings_, const Parameters<T>& parameters_, const Samples<T>& train_,
        const Samples<T>& validation_)
      : settings(std::move(settings_)),
        parameters(parameters_),
        train(train_),
        validation(validation_),
        batch_norm(settings.normalisation, settings.n_features, settings.normalisation_epsilon, parameters),
        optimizer(settings, parameters),
        order(train.n_rows) {
    const std::int64_t most = std::min(settings.batch_size, train.n_rows);
    batch.resize(most, settings.n_features, settings.loss, train.weight != nullptr);
    gradient.resize(most * settings.loss.n_outputs);
    held_out.resize(std::max(kReachabilityRows, std::min(kEvaluationRows, validation.n_rows)), settings.n_features,
                    settings.loss, validation.weight != nullptr || train.weight != nullptr);
  }

  std::int64_t n_batches() const { return (train.n_rows + settings.batch_size - 1) / settings.batch_size; }

  Ensemble<T> ensemble(double gamma, bool evaluating) const {
    const auto values = [evaluating](const Parameter<T>& of) { return evaluating ? of.evaluated : of.value; };
    return {values(parameters.split_weight),
            values(parameters.split_bias),
            values(parameters.leaf_weight),
            settings.n_trees,
            settings.n_features,
            settings.loss.n_outputs,
            settings.depth,
            settings.activation,
            T(gamma)};
  }

  double step(std::int64_t begin, std::int64_t end, double gamma, double learning_rate, std::int64_t adam_step,
              int n_threads);
  void validate(double gamma, int n_threads, EpochOutcome& outcome);
  double mean_reachable_leaves(double gamma, int n_threads);
};

// Returns the mean loss of the batch before the step. If it is not finite, no parameter changes.
template <typename T>
double Trainer<T>::State::step(std::int64_t begin, std::int64_t end, double gamma, double learning_rate,
                               std::int64_t adam_step, int n_threads) {
  const std::int64_t n = end - begin, p = settings.n_features;
  const Loss<T>& loss = settings.loss;
  batch.gather(train, p, loss.n_targets, begin, end, [&](std::int64_t i) { return train.row(order[i]); });
  const Rows<T> inputs{batch_norm.training(batch.x.data(), n, batch.normalised.data()), n, p};
  const Ensemble<T> trees = ensemble(gamma, false);
  forward(trees, inputs, true, batch.scores.data(), &tape, n_threads);
  add_offset(parameters.offset, n, loss.n_outputs, batch.scores.data());

  const T share = 1 / T(n);
  const double total =
      loss.evaluate(batch.scores.data(), batch.targets.data(), batch.weights(train), n, share, gradient.data());
  const bool finite =
      std::all_of(gradient.begin(), gradient.begin() + n * loss.n_outputs, [](T g) { return std::isfinite(g); });
  if (!finite || std::isinf(total)) return std::numeric_limits<double>::infinity();

  Gradients<T> gradients = optimizer.gradients();
  const T* scale_gradient = nullptr;
  if (batch_norm.needs_input_gradient()) {
    input_gradient.resize(batch.x.size());
    gradients.x = input_gradient.data();
  }
  backward(trees, inputs, true, gradient.data(), &tape, gradients, n_threads);
  if (gradients.x != nullptr) scale_gradient = batch_norm.scale_gradient(batch.x.data(), n, gradients.x);
  optimizer.update(adam_step, learning_rate, scale_gradient, n_threads);
  return loss.kind == LossKind::custom ? total : total / double(n);
}

template <typename T>
void Trainer<T>::State::validate(double gamma, int n_threads, EpochOutcome& outcome) {
  const Loss<T>& loss = settings.loss;
  Metric<T> metric(loss);
  double total = 0, total_weight = 0;
  for (std::int64_t begin = 0; begin < validation.n_rows; begin += kEvaluationRows) {
    const std::int64_t end = std::min(validation.n_rows, begin + kEvaluationRows), n = end - begin,
                       p = settings.n_features;
    held_out.gather(validation, p, loss.n_targets, begin, end, [&](std::int64_t i) { return validation.row(i); });
    const Rows<T> inputs{batch_norm.evaluation(held_out.x.data(), n, held_out.normalised.data()), n, p};
    forward<T>(ensemble(gamma, true), inputs, true, held_out.scores.data(), nullptr, n_threads);
    add_offset(parameters.offset, n, loss.n_outputs, held_out.scores.data());
    const T* const weight = held_out.weights(validation);
    const double part = loss.evaluate(held_out.scores.data(), held_out.targets.data(), weight, n, T(1), nullptr);
    metric.add(held_out.scores.data(), held_out.targets.data(), weight, n);
    // A custom loss is a mean over its rows; the others are weighted sums.
    const bool mean_given = loss.kind == LossKind::custom;
    total += mean_given ? part * double(n) : part;
    total_weight += mean_given || weight == nullptr ? double(n) : std::accumulate(weight, weight + n, 0.0);
  }
  outcome.validation_loss = total_weight > 0 ? total / total_weight : kUnknown;
  outcome.validation_metric = metric.value();
}

template <typename T>
double Trainer<T>::State::mean_reachable_leaves(double gamma, int n_threads) {
  const std::int64_t n = std::min(kReachabilityRows, train.n_rows), p = settings.n_features;
  held_out.gather(train, p, settings.loss.n_targets, 0, n, [&](std::int64_t i) { return train.row(order[i]); });
  const Rows<T> inputs{batch_norm.evaluation(held_out.x.data(), n, held_out.normalised.data()), n, p};
  std::vector<std::int32_t> leaves(n * settings.n_trees), internal_nodes(leaves.size()),
      fractional_nodes(leaves.size());
  reachability(ensemble(gamma, true), inputs, leaves.data(), internal_nodes.data(), fractional_nodes.data(), n_threads);
  std::int64_t total = 0;
  for (const std::int32_t count : leaves) total += count;
  return double(total) / double(leaves.size());
}

template <typename T>
Trainer<T>::Trainer(MemberSettings<T> settings, const Parameters<T>& parameters, const Samples<T>& train,
                    const Samples<T>& validation)
    : state_(std::make_unique<State>(std::move(settings), parameters, train, validation)) {}

template <typename T>
Trainer<T>::~Trainer() = default;

template <typename T>
double Trainer<T>::gamma() const {
  return state_->settings.schedule.gamma_at(std::max<std::int64_t>(0, schedule_step - 1));
}

template <typename T>
EpochOutcome Trainer<T>::run_epoch(std::int64_t epoch, Control& control, int n_threads) {
  const auto start = std::chrono::steady_clock::now();
  State& state = *state_;
  const Schedule& schedule = state.settings.schedule;
  const std::int64_t n = state.train.n_rows, n_batches = state.n_batches();
  EpochOutcome outcome;
  double total = 0;
  shuffled_order(state.settings.seed, epoch, state.order);
  for (std::int64_t b = 0; b < n_batches; ++b) {
    if (control.should_stop()) {
      outcome.status = EpochOutcome::Status::stopped;
      break;
    }
    const std::int64_t begin = b * n / n_batches, end = (b + 1) * n / n_batches;
    outcome.learning_rate = schedule.learning_rate_at(schedule_step);
    outcome.gamma = schedule.gamma_at(schedule_step);
    const double loss = state.step(begin, end, outcome.gamma, outcome.learning_rate, adam_step + 1, n_threads);
    if (std::isinf(loss)) {
      outcome.status = EpochOutcome::Status::not_finite;
      break;
    }
    total += loss * double(end - begin);
    ++schedule_step;
    ++adam_step;
    ++outcome.steps_done;
  }
  const std::int64_t rows_done = outcome.steps_done * n / n_batches;
  outcome.train_loss = rows_done > 0 ? total / double(rows_done) : kUnknown;
  outcome.validation_loss = outcome.validation_metric = outcome.mean_reachable_leaves = kUnknown;
  if (outcome.steps_done > 0) state.optimizer.read_averages(adam_step);
  if (outcome.status == EpochOutcome::Status::completed) {
    state.validate(outcome.gamma, n_threads, outcome);
    outcome.mean_reachable_leaves = state.mean_reachable_leaves(outcome.gamma, n_threads);
  }
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return outcome;
}

template <typename T>
std::vector<EpochOutcome> run_epoch(std::span<Trainer<T>* const> members, std::int64_t epoch, Control& control,
                                    int n_threads) {
  const auto n_members = static_cast<std::int64_t>(members.size());
  std::vector<EpochOutcome> outcomes(n_members);
  const int n_outer = static_cast<int>(std::min<std::int64_t>(n_threads, std::max<std::int64_t>(1, n_members)));
  parallel_for(n_members, n_outer, [&](std::int64_t i) {
    try {
      outcomes[i] = members[i]->run_epoch(epoch, control, n_threads / n_outer);
    } catch (...) {
      control.stop();
      throw;
    }
  });
  return outcomes;
}

template class Trainer<float>;
template class Trainer<double>;
template std::vector<EpochOutcome> run_epoch<float>(std::span<Trainer<float>* const>, std::int64_t, Control&, int);
template std::vector<EpochOutcome> run_epoch<double>(std::span<Trainer<double>* const>, std::int64_t, Control&, int);

}  // namespace softwood

// The epoch loop: shuffle, batches, loss, step, validation. What a step does to the trees is left to TreesInTraining.
#include "softwood/trainer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "metric.h"
#include "softwood/thread_pool.h"

namespace softwood {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
constexpr std::int64_t kEvaluationRows = 1024;  // at a time
constexpr std::int64_t kReachabilityRows = 32;  // enough to follow the mean over epochs

// Contiguous copies of the targets and weights of some rows.
template <typename T>
struct Batch {
  std::vector<std::int64_t> rows;
  std::vector<T> targets, weight, scores;

  Batch(std::int64_t n_most, const Loss<T>& loss, bool weighted)
      : rows(n_most),
        targets(n_most * loss.n_targets),
        weight(weighted ? n_most : 0),
        scores(n_most * loss.n_outputs) {}

  // Rows number(begin), ..., number(end - 1) of the table.
  template <typename Number>
  std::span<const std::int64_t> gather(const Labels<T>& labels, std::int64_t n_targets, std::int64_t begin,
                                       std::int64_t end, const Number& number) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t row = number(i), to = i - begin;
      rows[to] = row;
      for (std::int64_t t = 0; t < n_targets; ++t) targets[to * n_targets + t] = labels.targets[row * n_targets + t];
      if (labels.weight != nullptr) weight[to] = labels.weight[row];
    }
    return {rows.data(), static_cast<std::size_t>(end - begin)};
  }

  const T* weights(const Labels<T>& labels) const { return labels.weight != nullptr ? weight.data() : nullptr; }
};

template <typename T>
void add_offsets(const Labels<T>& labels, std::span<const std::int64_t> rows, std::int64_t n_outputs, T* scores) {
  if (labels.offset == nullptr) return;
  for (const std::int64_t row : rows) {
    for (std::int64_t j = 0; j < n_outputs; ++j) *scores++ += labels.offset[row * n_outputs + j];
  }
}

}  // namespace

template <typename T>
struct Trainer<T>::State {
  LoopSettings<T> settings;
  Labels<T> train, validation;
  std::unique_ptr<TreesInTraining<T>> trees;
  std::vector<std::int64_t> order;
  Batch<T> batch, held_out;
  std::vector<T> gradient;  // of the loss with respect to the scores

  State(LoopSettings<T> settings_, const Labels<T>& train_, const Labels<T>& validation_,
        std::unique_ptr<TreesInTraining<T>> trees_)
      : settings(std::move(settings_)),
        train(train_),
        validation(validation_),
        trees(std::move(trees_)),
        order(train.n_rows),
        batch(std::min(settings.batch_size, train.n_rows), settings.loss, train.weight != nullptr),
        held_out(std::min(kEvaluationRows, validation.n_rows), settings.loss, validation.weight != nullptr),
        gradient(batch.scores.size()) {}

  std::int64_t n_batches() const { return (train.n_rows + settings.batch_size - 1) / settings.batch_size; }

  double step(std::int64_t begin, std::int64_t end, double gamma, double learning_rate, std::int64_t adam_step,
              int n_threads);
  void validate(double gamma, int n_threads, T* all_scores, EpochOutcome& outcome);
  double mean_reachable_leaves(double gamma, int n_threads);
};

// Returns the mean loss of the batch before the step. If it is not finite, no parameter changes.
template <typename T>
double Trainer<T>::State::step(std::int64_t begin, std::int64_t end, double gamma, double learning_rate,
                               std::int64_t adam_step, int n_threads) {
  const std::int64_t n = end - begin;
  const Loss<T>& loss = settings.loss;
  const auto rows =
      batch.gather(train, loss.n_targets, begin, end, [&](std::int64_t i) { return train.row(order[i]); });
  trees->forward(rows, gamma, batch.scores.data(), n_threads);
  add_offsets(train, rows, loss.n_outputs, batch.scores.data());

  const T share = 1 / T(n);
  const double total =
      loss.evaluate(batch.scores.data(), batch.targets.data(), batch.weights(train), n, share, gradient.data());
  const bool finite =
      std::all_of(gradient.begin(), gradient.begin() + n * loss.n_outputs, [](T g) { return std::isfinite(g); });
  if (!finite || std::isinf(total)) return std::numeric_limits<double>::infinity();

  trees->backward(gradient.data(), learning_rate, adam_step, n_threads);
  return loss.kind == LossKind::custom ? total : total / double(n);
}

template <typename T>
void Trainer<T>::State::validate(double gamma, int n_threads, T* all_scores, EpochOutcome& outcome) {
  const Loss<T>& loss = settings.loss;
  Metric<T> metric(loss);
  double total = 0, total_weight = 0;
  for (std::int64_t begin = 0; begin < validation.n_rows; begin += kEvaluationRows) {
    const std::int64_t end = std::min(validation.n_rows, begin + kEvaluationRows), n = end - begin;
    const auto rows =
        held_out.gather(validation, loss.n_targets, begin, end, [&](std::int64_t i) { return validation.row(i); });
    T* const scores = all_scores != nullptr ? all_scores + begin * loss.n_outputs : held_out.scores.data();
    trees->evaluate(Part::validation, rows, gamma, scores, n_threads);
    add_offsets(validation, rows, loss.n_outputs, scores);
    const T* const weight = held_out.weights(validation);
    const double part = loss.evaluate(scores, held_out.targets.data(), weight, n, T(1), nullptr);
    metric.add(scores, held_out.targets.data(), weight, n);
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
  std::vector<std::int64_t> rows(std::min(kReachabilityRows, train.n_rows));
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = train.row(order[i]);
  return trees->mean_reachable_leaves(rows, gamma, n_threads);
}

template <typename T>
Trainer<T>::Trainer(LoopSettings<T> settings, const Labels<T>& train, const Labels<T>& validation,
                    std::unique_ptr<TreesInTraining<T>> trees)
    : state_(std::make_unique<State>(std::move(settings), train, validation, std::move(trees))) {}

template <typename T>
Trainer<T>::~Trainer() = default;

template <typename T>
double Trainer<T>::gamma() const {
  return state_->settings.schedule.gamma_at(std::max<std::int64_t>(0, schedule_step - 1));
}

template <typename T>
void Trainer<T>::hold_gamma(double value) {
  Schedule& schedule = state_->settings.schedule;
  schedule.gamma = schedule.gamma_end = value;
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
  if (outcome.steps_done > 0) state.trees->end_epoch(adam_step, n_threads);
  if (outcome.status == EpochOutcome::Status::completed) {
    state.validate(outcome.gamma, n_threads, validation_scores, outcome);
    outcome.mean_reachable_leaves = state.mean_reachable_leaves(outcome.gamma, n_threads);
  }
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return outcome;
}

template <typename T>
EpochOutcome Trainer<T>::evaluate(int n_threads) {
  EpochOutcome outcome;
  outcome.train_loss = outcome.mean_reachable_leaves = outcome.learning_rate = kUnknown;
  outcome.gamma = gamma();
  state_->trees->end_epoch(adam_step, n_threads);
  state_->validate(outcome.gamma, n_threads, validation_scores, outcome);
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

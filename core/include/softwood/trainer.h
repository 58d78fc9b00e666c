// The fused trainer: mini-batches of shuffled rows, batch normalisation, trees, loss, backward pass and Adam, one epoch
// per call, for several ensembles ("members") at once. One loop serves every kind of trees (`TreesInTraining`); those
// of this header have linear splits, those of softwood/lookup.h sums of lookups.
//
// The caller owns every array of a member: tables, parameters, moments of the optimiser. Between two epochs the state
// of a member is its arrays and two counters, which is all that a checkpoint contains. Results are bit-identical for
// every number of threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <vector>

#include "softwood/encoding.h"
#include "softwood/ensemble.h"
#include "softwood/loss.h"

namespace softwood {

// Everything that the loop knows of a set of rows: all but the inputs of the trees.
template <typename T>
struct Labels {
  const T* targets;          // [rows of the table, t]
  const T* weight;           // [rows of the table], or null: 1 for each row
  const std::int64_t* rows;  // indices of rows of the table, or null: the first n_rows
  std::int64_t n_rows;
  std::int64_t n_table_rows;
  const T* offset = nullptr;  // [rows of the table, k], added to the scores of each row, or null

  // Index of row i in the table. Checked, because the caller owns `rows` and may have changed it.
  std::int64_t row(std::int64_t i) const {
    const std::int64_t row = rows != nullptr ? rows[i] : i;
    if (row < 0 || row >= n_table_rows) throw std::out_of_range("softwood: `rows` contains an index past the end of x");
    return row;
  }
};

// Some rows of a table. `rows` null means all of x; `weight` null means 1 for each row. With an encoding, x is a base
// matrix, and the inputs of the trees are its encoded rows.
template <typename T>
struct Samples {
  Rows<T> x;
  const T* targets;  // [x.n_rows, t]
  const T* weight;   // [x.n_rows], or null
  const std::int64_t* rows;
  std::int64_t n_rows;  // length of `rows`, or that of x
  const Encoding* encoding = nullptr;
  const T* offset = nullptr;  // [x.n_rows, k], or null

  Labels<T> labels() const { return {targets, weight, rows, n_rows, x.n_rows, offset}; }
  std::int64_t row(std::int64_t i) const { return labels().row(i); }

  // Writes the inputs of the trees for one row of the table.
  void read(std::int64_t row, std::int64_t n_features, T* inputs) const {
    if (encoding != nullptr) {
      encode_row(*encoding, x.row(row), inputs);
    } else {
      std::copy_n(x.row(row), n_features, inputs);
    }
  }
};

// Learning rate and gamma as functions of the step, counted from 0.
struct Schedule {
  double learning_rate;
  double gamma, gamma_end;          // gamma moves geometrically between the two
  double anneal_begin, anneal_end;  // between these fractions of all steps
  double warmup;                    // fraction of all steps in which the learning rate rises linearly
  bool cosine;                      // afterwards a half cosine down to 0, otherwise constant
  std::int64_t n_steps;             // all steps of the fit

  double learning_rate_at(std::int64_t step) const;
  double gamma_at(std::int64_t step) const;
};

enum class Updates : int {
  dense = 0,      // Adam: every row in every step
  lazy = 1,       // only rows with a gradient; the moments of the others do not change
  automatic = 2,  // per tree and step: lazy if less than half of the splits have a gradient
};

struct AdamSettings {
  Updates updates;
  double beta1, beta2, epsilon;
  double l1;                      // on split weights, decoupled: a proximal step by learning rate * l1
  double l2;                      // on split weights, gradient l2 * w
  double weight_decay;            // of leaf weights, decoupled
  double average_decay;           // of the exponential average of all parameters; 0: none
  double split_weight_decay = 0;  // of split weights, decoupled
};

// The statistics that normalise the inputs in training. Evaluation always uses those of the whole training set.
enum class Normalisation : int { none = 0, batch = 1, training_set = 2 };

// A trained array and the state of the optimiser for it. A second moment of infinity freezes an element: this prevents
// a split from using a feature, at no cost in time.
template <typename T>
struct Parameter {
  T* value;
  T* first_moment;
  T* second_moment;
  T* average;    // decaying sum, not divided by its total weight; null without averaging
  T* evaluated;  // used for evaluation: the average, written at the end of each epoch; without averaging, `value`
};

template <typename T>
struct Parameters {
  Parameter<T> split_weight;  // [m, 2^d - 1, p]
  Parameter<T> split_bias;    // [m, 2^d - 1], or all null
  Parameter<T> leaf_weight;   // [m, 2^d, k]
  Parameter<T> scale, shift;  // [p] each; null without normalisation
  std::int64_t*
      split_step;  // [m, 2^d - 1]: the step up to which the average of a row is written; null without averaging
  std::int64_t* leaf_step;  // [m, 2^d]
  const T* offset;          // [k], added to the output, not trained
  const T* mean;            // [p], of the training set; null without normalisation
  const T* variance;        // [p]
};

template <typename T>
struct MemberSettings {
  std::int64_t n_trees, n_features;
  int depth;
  Activation activation;
  Normalisation normalisation;
  double normalisation_epsilon;
  std::int64_t batch_size;
  std::uint64_t seed;
  Schedule schedule;
  AdamSettings adam;
  Loss<T> loss;
};

// Asked after each step whether to stop. Thread-safe, except that `poll`, which is called about every 50 ms, runs on
// the asking thread: with a poll, only one thread may ask.
class Control {
 public:
  explicit Control(double seconds_left, std::function<bool()> poll = {});
  void stop() { stopped_.store(true, std::memory_order_relaxed); }
  bool should_stop();

 private:
  using Clock = std::chrono::steady_clock;
  std::atomic<bool> stopped_{false};
  Clock::time_point deadline_, next_poll_;
  std::function<bool()> poll_;
};

struct EpochOutcome {
  enum class Status : int { completed = 0, stopped = 1, not_finite = 2 };
  Status status = Status::completed;
  std::int64_t steps_done = 0;          // in this epoch
  double train_loss = 0;                // mean over the rows of the epoch, before each step
  double validation_loss = 0;           // NaN without validation rows, or after a stop
  double mean_reachable_leaves = 0;     // per tree, over a sample of training rows; NaN after a stop
  double learning_rate = 0, gamma = 0;  // of the last step
  double seconds = 0;
  double validation_metric = 0;  // accuracy or R squared; NaN if neither applies
};

enum class Part : int { train, validation };

// One kind of trees as the epoch loop sees it. `rows` are numbers of rows of the table of training or validation rows;
// scores are [number of rows, k].
template <typename T>
class TreesInTraining {
 public:
  virtual ~TreesInTraining() = default;

  // Reads a batch of training rows, writes its scores, and keeps what `backward` needs.
  virtual void forward(std::span<const std::int64_t> rows, double gamma, T* scores, int n_threads) = 0;
  // Backward pass and one step of the optimiser for the batch last given to `forward`. `gradient` is that of the loss
  // with respect to the scores; `step` counts from 1.
  virtual void backward(const T* gradient, double learning_rate, std::int64_t step, int n_threads) = 0;
  // After the last step of an epoch, before any evaluation: writes the averages up to `step`, if there are any, to
  // where evaluation reads them.
  virtual void end_epoch(std::int64_t step, int n_threads) = 0;
  // Scores with the parameters that evaluation uses.
  virtual void evaluate(Part part, std::span<const std::int64_t> rows, double gamma, T* scores, int n_threads) = 0;
  // Mean number of leaves per tree that training rows reach in evaluation.
  virtual double mean_reachable_leaves(std::span<const std::int64_t> rows, double gamma, int n_threads) = 0;
};

// What the loop needs to know of a fit.
template <typename T>
struct LoopSettings {
  std::int64_t batch_size;
  std::uint64_t seed;
  Schedule schedule;
  Loss<T> loss;
};

template <typename T>
class Trainer {
 public:
  Trainer(LoopSettings<T> settings, const Labels<T>& train, const Labels<T>& validation,
          std::unique_ptr<TreesInTraining<T>> trees);
  // Trees with linear splits.
  Trainer(MemberSettings<T> settings, const Parameters<T>& parameters, const Samples<T>& train,
          const Samples<T>& validation);
  ~Trainer();

  // The order of rows depends on seed and `epoch` alone. Rethrows exceptions of a custom loss.
  EpochOutcome run_epoch(std::int64_t epoch, Control& control, int n_threads);

  // Scores and losses of the validation rows with the present parameters (with averaging: the averages, after at least
  // one step), without any step.
  EpochOutcome evaluate(int n_threads);

  // Of the last completed step.
  double gamma() const;
  // Fixes gamma for all further steps.
  void hold_gamma(double value);

  // Completed steps of this fit (for the schedule) and of all fits (for Adam).
  std::int64_t schedule_step = 0;
  std::int64_t adam_step = 0;

  // If not null, each completed epoch writes the scores of the validation rows there: [n_validation, k].
  T* validation_scores = nullptr;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// One epoch of each member, in parallel over members if there are several threads. If a member throws, the others are
// stopped and one exception is rethrown.
template <typename T>
std::vector<EpochOutcome> run_epoch(std::span<Trainer<T>* const> members, std::int64_t epoch, Control& control,
                                    int n_threads);

// Writes a permutation of 0, ..., n - 1 that depends on seed and epoch alone.
void shuffled_order(std::uint64_t seed, std::int64_t epoch, std::span<std::int64_t> order);

// Mean and (population) variance of each column over the samples, in float64.
template <typename T>
void column_statistics(const Samples<T>& samples, std::int64_t n_features, double* mean, double* variance,
                       int n_threads);

}  // namespace softwood

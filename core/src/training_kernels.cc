// Adam (Kingma and Ba), also restricted to reached rows, exponential averages, and the column sums of batch
// normalisation.
//
// The rows that a batch reached form runs; a run is one flat range of elements, so that vectors are full even if a row
// is shorter than a vector (leaves with few outputs).
#include "training_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "adam.h"
#include "marked_runs.h"

namespace softwood::SOFTWOOD_ISA {
namespace {

// Rows per pass, so that a row is still in the L1 cache at its second use.
constexpr std::int64_t kRowsAtOnce = 16;

// Calls body(i) for whole vectors at 0, kLanes, ... and body(i, tail) for the rest of n.
template <typename T, typename Body>
SOFTWOOD_INLINE void for_each_vector(std::int64_t n, const Body& body) {
  std::int64_t i = 0;
  for (; i + kLanes<T> <= n; i += kLanes<T>) body(i);
  if (i < n) body(i, Tail<T>(n - i));
}

template <typename T, typename... Part>
SOFTWOOD_INLINE void update_vector(const AdamStep<T>& step, const Elements<T>& at, std::int64_t i,
                                   const Part&... part) {
  const Vector<T> before = load(at.value + i, part...);
  const Vector<T> gradient = load(at.gradient + i, part...);
  Vector<T> first = load(at.first_moment + i, part...);
  Vector<T> second = load(at.second_moment + i, part...);
  const Vector<T> value = adam<T>(step, before, gradient, first, second);
  store(at.value + i, value, part...);
  store(at.gradient + i, Vector<T>{}, part...);
  store(at.first_moment + i, first, part...);
  store(at.second_moment + i, second, part...);
  if (at.average != nullptr) {
    const Vector<T> average = load(at.average + i, part...);
    store(at.average + i, value + (average - value) * step.average_decay, part...);
  }
}

template <typename T>
void update_range(const AdamStep<T>& step, const Elements<T>& at, std::int64_t n) {
  for_each_vector<T>(n, [&](std::int64_t i, const auto&... part) { update_vector<T>(step, at, i, part...); });
}

template <typename T>
void update(const AdamStep<T>& step, const Elements<T>& elements, std::int64_t n) {
  const FlushSubnormals flushing;
  update_range(step, elements, n);
}

// Brings the averages of rows without recent updates up to the step before this one; their values have not changed.
template <typename T>
void catch_up(const Elements<T>& at, std::int64_t begin, std::int64_t end, std::int64_t n_columns,
              const std::int64_t* row_step, std::int64_t step, T decay) {
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int64_t missed = step - 1 - row_step[row];
    if (missed == 0) continue;
    const T factor = T(std::pow(double(decay), double(missed)));
    for (std::int64_t i = row * n_columns; i < (row + 1) * n_columns; ++i) {
      at.average[i] = at.value[i] + (at.average[i] - at.value[i]) * factor;
    }
  }
}

template <typename T>
SOFTWOOD_INLINE void prefetch_row(const Elements<T>& at, std::int64_t row, std::int64_t n_columns) {
  constexpr std::int64_t line = 64 / sizeof(T);
  for (std::int64_t i = row * n_columns; i < (row + 1) * n_columns; i += line) {
    __builtin_prefetch(at.value + i, 1);
    __builtin_prefetch(at.gradient + i, 1);
    __builtin_prefetch(at.first_moment + i, 1);
    __builtin_prefetch(at.second_moment + i, 1);
  }
}

// Calls body(begin, end) for each run of marked rows, in order, and removes the marks. Runs of a deep tree are short
// and far apart, so the memory of a run is prefetched several runs ahead.
template <typename T, typename Body>
SOFTWOOD_INLINE void for_each_run(std::uint8_t* marked, std::int64_t n_rows, const Elements<T>& at,
                                  std::int64_t n_columns, const Body& body) {
  constexpr int kAhead = 8;
  Run ring[kAhead];
  MarkedRuns runs(marked, n_rows);
  const auto find_next = [&] {
    const Run run = runs.next();
    if (!run.is_empty()) prefetch_row(at, run.begin, n_columns);
    return run;
  };
  for (Run& run : ring) run = find_next();
  for (int turn = 0; !ring[turn].is_empty(); turn = (turn + 1) % kAhead) {
    const Run run = ring[turn];
    ring[turn] = find_next();
    body(run.begin, run.end);
  }
}

std::int64_t count_marked(const std::uint8_t* marked, std::int64_t n_rows) {
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < n_rows; ++i) count += marked[i] != 0;
  return count;
}

template <typename T>
void add_affine_sums(const TreeUpdate<T>& tree, std::int64_t begin, std::int64_t end) {
  const std::int64_t p = tree.n_features;
  for_each_vector<T>(p, [&](std::int64_t f, const auto&... part) {
    Vector<T> with_bias = load(tree.weight_bias_sum + f, part...);
    Vector<T> with_gradient = load(tree.weight_gradient_sum + f, part...);
    for (std::int64_t row = begin; row < end; ++row) {
      const Vector<T> weight = load(tree.split_weight.value + row * p + f, part...);
      with_bias += weight * tree.split_bias.gradient[row];
      with_gradient += weight * load(tree.split_weight.gradient + row * p + f, part...);
    }
    store(tree.weight_bias_sum + f, with_bias, part...);
    store(tree.weight_gradient_sum + f, with_gradient, part...);
  });
}

template <typename T>
void update_splits(const TreeUpdate<T>& tree, std::int64_t begin, std::int64_t end) {
  const std::int64_t p = tree.n_features, n = end - begin;
  if (tree.weight_bias_sum != nullptr) add_affine_sums(tree, begin, end);
  const bool has_bias = tree.split_bias.value != nullptr;
  if (tree.split_step != nullptr) {
    const T decay = tree.split_weight_step.average_decay;
    catch_up(tree.split_weight, begin, end, p, tree.split_step, tree.step, decay);
    if (has_bias) catch_up(tree.split_bias, begin, end, 1, tree.split_step, tree.step, decay);
    std::fill(tree.split_step + begin, tree.split_step + end, tree.step);
  }
  update_range(tree.split_weight_step, tree.split_weight.from(begin * p), n * p);
  if (has_bias)
    update_range(tree.split_bias_step, tree.split_bias.from(begin), n);
  else
    std::fill_n(tree.split_bias.gradient + begin, n, T(0));
}

template <typename T>
void update_leaves(const TreeUpdate<T>& tree, std::int64_t begin, std::int64_t end) {
  const std::int64_t k = tree.n_outputs, n = end - begin;
  if (tree.leaf_step != nullptr) {
    catch_up(tree.leaf_weight, begin, end, k, tree.leaf_step, tree.step, tree.leaf_weight_step.average_decay);
    std::fill(tree.leaf_step + begin, tree.leaf_step + end, tree.step);
  }
  update_range(tree.leaf_weight_step, tree.leaf_weight.from(begin * k), n * k);
}

template <typename T>
void update_tree(const TreeUpdate<T>& tree) {
  const FlushSubnormals flushing;
  const bool dense =
      tree.updates == Updates::dense ||
      (tree.updates == Updates::automatic && 2 * count_marked(tree.split_marked, tree.n_splits) >= tree.n_splits);
  const auto splits = [&](std::int64_t begin, std::int64_t end) {
    for (; begin < end; begin += kRowsAtOnce) update_splits(tree, begin, std::min(end, begin + kRowsAtOnce));
  };
  if (dense) {
    splits(0, tree.n_splits);
    update_leaves(tree, 0, tree.n_splits + 1);
    std::memset(tree.split_marked, 0, tree.n_splits);
    std::memset(tree.leaf_marked, 0, tree.n_splits + 1);
  } else {
    for_each_run(tree.split_marked, tree.n_splits, tree.split_weight, tree.n_features, splits);
    for_each_run(tree.leaf_marked, tree.n_splits + 1, tree.leaf_weight, tree.n_outputs,
                 [&](std::int64_t begin, std::int64_t end) { update_leaves(tree, begin, end); });
  }
}

template <typename T>
void read_average(const Parameter<T>& parameter, std::int64_t n_rows, std::int64_t n_columns,
                  const std::int64_t* row_step, std::int64_t step, double decay) {
  const double total = 1 - std::pow(decay, double(step));
  for (std::int64_t row = 0; row < n_rows; ++row) {
    const std::int64_t missed = row_step != nullptr ? step - row_step[row] : 0;
    const double kept = missed > 0 ? std::pow(decay, double(missed)) : 1;
    const T of_average = T(kept / total), of_value = T((1 - kept) / total);
    for (std::int64_t i = row * n_columns; i < (row + 1) * n_columns; ++i) {
      parameter.evaluated[i] = parameter.average[i] * of_average + parameter.value[i] * of_value;
    }
  }
}

// At most this many rows are summed directly; their sums are summed then. The error of a sum grows with its length.
constexpr std::int64_t kRowsPerSum = 128;

template <typename T, typename Term>
SOFTWOOD_INLINE Vector<T> sum_rows(std::int64_t n, const Term& term) {
  Vector<T> total{};
  for (std::int64_t begin = 0; begin < n; begin += kRowsPerSum) {
    const std::int64_t end = std::min(n, begin + kRowsPerSum);
    Vector<T> even{}, odd{};
    std::int64_t i = begin;
    for (; i + 2 <= end; i += 2) {
      even += term(i);
      odd += term(i + 1);
    }
    if (i < end) even += term(i);
    total += even + odd;
  }
  return total;
}

template <typename T>
void column_moments(const T* x, std::int64_t n, std::int64_t p, T* mean, T* variance) {
  const T share = 1 / T(n);
  for_each_vector<T>(p, [&](std::int64_t f, const auto&... part) {
    const Vector<T> centre = share * sum_rows<T>(n, [&](std::int64_t i) { return load(x + i * p + f, part...); });
    const Vector<T> spread = share * sum_rows<T>(n, [&](std::int64_t i) {
                               const Vector<T> distance = load(x + i * p + f, part...) - centre;
                               return distance * distance;
                             });
    store(mean + f, centre, part...);
    store(variance + f, spread, part...);
  });
}

template <typename T>
void normalise(const T* x, std::int64_t n, std::int64_t p, const T* mean, const T* factor, const T* shift, T* out) {
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t f = 0; f < p; ++f) out[i * p + f] = (x[i * p + f] - mean[f]) * factor[f] + shift[f];
  }
}

template <typename T>
constexpr TrainingKernels<T> all_kernels() {
  return {update_tree<T>, update<T>, read_average<T>, column_moments<T>, normalise<T>};
}

}  // namespace

extern const TrainingKernels<float> training_kernels_float = all_kernels<float>();
extern const TrainingKernels<double> training_kernels_double = all_kernels<double>();

}  // namespace softwood::SOFTWOOD_ISA

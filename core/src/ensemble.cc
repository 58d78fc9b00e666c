// Drivers: cut a call into units (a group of trees on a block of samples), hand them to the thread pool, and add up
// what the units found in a fixed order. How a call is cut depends on its shape alone, never on the number of threads.
#include "softwood/ensemble.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <string_view>
#include <vector>

#include "kernels.h"
#include "softwood/thread_pool.h"

namespace softwood {
namespace {

constexpr std::int64_t kBlockRows = kMostSamples;  // samples of a unit: enough to use each weight often
constexpr std::int64_t kListEntries = 1280;  // trees are grouped until a level has about so many (tree, sample) pairs
constexpr std::int64_t kMostGroups = 32;     // each group has its own partial sums of dL/dx
constexpr std::int64_t kFewestTasks = 4;     // of a backward pass; with fewer groups, blocks are shared out too
constexpr std::int64_t kChunkRows = 4096;    // samples in work at a time
constexpr std::int64_t kPartialBytes = 1 << 24;  // of partial sums in work at a time

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// How a call is cut. Blocks are counted over the whole batch, groups over the whole ensemble.
struct Plan {
  std::int64_t n_rows, n_trees;
  std::int64_t n_groups;
  std::int64_t n_blocks;
  std::int64_t chunk_blocks;  // blocks in work at a time

  std::int64_t tree_begin(std::int64_t group) const { return group * n_trees / n_groups; }
  std::int64_t row_begin(std::int64_t block) const { return std::min(block * kBlockRows, n_rows); }

  template <typename T>
  static Plan of(const Ensemble<T>& ensemble, std::int64_t n_rows, bool sum_trees) {
    const std::int64_t m = ensemble.n_trees;
    const std::int64_t block = std::min(n_rows, kBlockRows);
    const std::int64_t group_trees =
        std::min(std::max(ceil_div(kListEntries, std::max<std::int64_t>(block, 1)), ceil_div(m, kMostGroups)),
                 kMostLeaves / ensemble.n_leaves());
    const std::int64_t n_groups = sum_trees ? ceil_div(m, group_trees) : m;
    const std::int64_t row_bytes = n_groups * (ensemble.n_features + ensemble.n_outputs) * std::int64_t(sizeof(T));
    const std::int64_t chunk_rows = std::clamp(kPartialBytes / row_bytes, kBlockRows, kChunkRows);
    return {n_rows, m, n_groups, ceil_div(n_rows, kBlockRows), chunk_rows / kBlockRows};
  }

  bool operator==(const Plan&) const = default;
};

// Gradient arrays from the first tree of a group on; x from a given row of partial sums.
template <typename T>
Gradients<T> gradients_of(const Ensemble<T>& ensemble, Gradients<T> gradients, std::int64_t tree, T* x) {
  const std::int64_t splits = tree * ensemble.n_splits(), leaves = tree * ensemble.n_leaves();
  gradients.x = x;
  if (gradients.split_weight != nullptr) gradients.split_weight += splits * ensemble.n_features;
  if (gradients.split_bias != nullptr) gradients.split_bias += splits;
  if (gradients.split_marked != nullptr) gradients.split_marked += splits;
  if (gradients.leaf_weight != nullptr) gradients.leaf_weight += leaves * ensemble.n_outputs;
  if (gradients.leaf_marked != nullptr) gradients.leaf_marked += leaves;
  return gradients;
}

// Each thread keeps one arena for its units and gives its memory back to the pool after each call.
Arena& thread_scratch() {
  thread_local Arena arena;
  return arena;
}

// parallel_for whose tasks may throw (out of memory): the first exception reaches the caller, once all tasks have
// ended.
template <typename Task>
void run_tasks(std::int64_t n_tasks, int n_threads, const Task& task) {
  std::exception_ptr failure;
  std::mutex mutex;
  parallel_for(n_tasks, n_threads, [&](std::int64_t i) {
    const Arena::Mark mark = thread_scratch().mark();
    try {
      task(i);
    } catch (...) {
      std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
    thread_scratch().release(mark);
  });
  if (failure) std::rethrow_exception(failure);
}

// x of a chunk of blocks as the kernels read it.
template <typename T>
class Batch {
 public:
  // Tiles are for forward passes only.
  Batch(const Plan& plan, std::int64_t n_features, bool with_tiles, Arena& arena)
      : plan_(plan),
        n_features_(n_features),
        padded_features_(round_up(n_features, kernels<T>().lanes)),
        tile_size_(round_up(std::min(plan.n_rows, kBlockRows), kernels<T>().tile_rows) * n_features) {
    const std::int64_t n_blocks = std::min(plan.chunk_blocks, plan.n_blocks);
    rows_ = arena.allocate<T>(n_blocks * kBlockRows * padded_features_);
    if (with_tiles) tiles_ = arena.allocate<T>(n_blocks * tile_size_);
  }

  void fill(const Rows<T>& x, std::int64_t first_block, std::int64_t n_blocks, int n_threads) {
    first_block_ = first_block;
    run_tasks(n_blocks, n_threads, [&](std::int64_t i) {
      const std::int64_t row = plan_.row_begin(first_block + i);
      const Rows<T> rows{x.row(row), plan_.row_begin(first_block + i + 1) - row, x.row_stride};
      kernels<T>().arrange(rows, n_features_, rows_ + i * kBlockRows * padded_features_,
                           tiles_ == nullptr ? nullptr : tiles_ + i * tile_size_);
    });
  }

  // The unit of a group and block, which must be of the chunk that was filled last.
  Unit<T> unit(const Ensemble<T>& ensemble, std::int64_t group, std::int64_t block) const {
    const std::int64_t tree = plan_.tree_begin(group), i = block - first_block_;
    Unit<T> unit;
    unit.x = {rows_ + i * kBlockRows * padded_features_, plan_.row_begin(block + 1) - plan_.row_begin(block),
              padded_features_};
    unit.x_tiles = tiles_ == nullptr ? nullptr : tiles_ + i * tile_size_;
    unit.ensemble = ensemble;
    unit.ensemble.n_trees = plan_.tree_begin(group + 1) - tree;
    unit.ensemble.split_weight += tree * ensemble.n_splits() * ensemble.n_features;
    if (ensemble.split_bias != nullptr) unit.ensemble.split_bias += tree * ensemble.n_splits();
    if (ensemble.leaf_weight != nullptr) unit.ensemble.leaf_weight += tree * ensemble.n_leaves() * ensemble.n_outputs;
    return unit;
  }

 private:
  static std::int64_t round_up(std::int64_t n, std::int64_t step) { return ceil_div(n, step) * step; }

  const Plan& plan_;
  std::int64_t n_features_, padded_features_, tile_size_, first_block_ = 0;
  T* rows_;
  T* tiles_ = nullptr;
};

// Calls body(first block, number of blocks) for one chunk after the other.
template <typename Body>
void for_chunks(const Plan& plan, const Body& body) {
  for (std::int64_t first = 0; first < plan.n_blocks; first += plan.chunk_blocks) {
    body(first, std::min(plan.chunk_blocks, plan.n_blocks - first));
  }
}

// to[i] = sum over groups of partial[group * stride + i], in the order of groups.
template <typename T>
void add_groups(const T* partial, std::int64_t n_groups, std::int64_t stride, std::int64_t size, T* to) {
  std::memcpy(to, partial, std::size_t(size) * sizeof(T));
  for (std::int64_t group = 1; group < n_groups; ++group) {
    const T* from = partial + group * stride;
    for (std::int64_t i = 0; i < size; ++i) to[i] += from[i];
  }
}

}  // namespace

template <typename T>
struct Tape<T>::Contents {
  struct Part {
    const Frontier<T>* root = nullptr;
    Arena arena;
  };
  Plan plan;
  std::vector<Part> parts;  // [block, group]
};

template <typename T>
Tape<T>::Tape() = default;
template <typename T>
Tape<T>::~Tape() = default;
template <typename T>
Tape<T>::Tape(Tape&&) noexcept = default;
template <typename T>
Tape<T>& Tape<T>::operator=(Tape&&) noexcept = default;

template <typename T>
std::size_t Tape<T>::n_bytes() const {
  std::size_t total = 0;
  if (contents) {
    for (const auto& part : contents->parts) total += part.arena.n_bytes();
  }
  return total;
}

template <typename T>
void forward(const Ensemble<T>& ensemble, const Rows<T>& x, bool sum_trees, T* output, Tape<T>* tape, int n_threads) {
  const Plan plan = Plan::of(ensemble, x.n_rows, sum_trees);
  const std::int64_t k = ensemble.n_outputs, m = ensemble.n_trees;
  if (tape != nullptr) {
    tape->contents = std::make_unique<typename Tape<T>::Contents>();
    tape->contents->plan = plan;
    tape->contents->parts.resize(std::size_t(plan.n_blocks * plan.n_groups));
  }
  Arena arena;
  Batch<T> batch(plan, ensemble.n_features, true, arena);
  const bool partials = plan.n_groups > 1;
  const std::int64_t chunk_size = std::min(plan.chunk_blocks * kBlockRows, plan.n_rows) * k;
  T* partial = partials ? arena.allocate<T>(plan.n_groups * chunk_size) : nullptr;

  for_chunks(plan, [&](std::int64_t first, std::int64_t n_blocks) {
    batch.fill(x, first, n_blocks, n_threads);
    const std::int64_t first_row = plan.row_begin(first);
    run_tasks(n_blocks * plan.n_groups, n_threads, [&](std::int64_t task) {
      const std::int64_t block = first + task / plan.n_groups, group = task % plan.n_groups;
      const Unit<T> unit = batch.unit(ensemble, group, block);
      const std::int64_t row = plan.row_begin(block);
      T* to = partials ? partial + group * chunk_size + (row - first_row) * k : output + row * k;
      if (tape == nullptr) {
        kernels<T>().forward(unit, to, nullptr, nullptr, thread_scratch());
      } else {
        auto& part = tape->contents->parts[std::size_t(block * plan.n_groups + group)];
        part.root = kernels<T>().forward(unit, to, nullptr, &part.arena, thread_scratch());
      }
    });
    if (!partials) return;
    run_tasks(n_blocks, n_threads, [&](std::int64_t i) {
      const std::int64_t row = plan.row_begin(first + i), n_rows = plan.row_begin(first + i + 1) - row;
      const T* from = partial + (row - first_row) * k;
      if (sum_trees) return add_groups(from, plan.n_groups, chunk_size, n_rows * k, output + row * k);
      for (std::int64_t r = 0; r < n_rows; ++r) {
        for (std::int64_t tree = 0; tree < m; ++tree) {
          std::copy_n(from + tree * chunk_size + r * k, k, output + ((row + r) * m + tree) * k);
        }
      }
    });
  });
}

namespace {

// Gradient rows that several lanes of blocks add to at the same time: the first lane writes to the result itself, the
// others to memory of their own, which is added in the order of lanes.
template <typename T>
class LaneGradients {
 public:
  LaneGradients(const Ensemble<T>& ensemble, const Gradients<T>& result, std::int64_t n_lanes)
      : ensemble_(ensemble), result_(result), lanes_(std::size_t(n_lanes - 1)) {
    for (Lane& lane : lanes_) {
      const std::int64_t splits = ensemble.n_trees * ensemble.n_splits(),
                         leaves = ensemble.n_trees * ensemble.n_leaves();
      if (result.split_weight != nullptr) lane.split_weight = Zeros<T>(splits * ensemble.n_features);
      if (result.split_bias != nullptr) lane.split_bias = Zeros<T>(splits);
      if (result.leaf_weight != nullptr) lane.leaf_weight = Zeros<T>(leaves * ensemble.n_outputs);
      lane.split_marked = Zeros<std::uint8_t>(splits);
      lane.leaf_marked = Zeros<std::uint8_t>(leaves);
    }
  }

  // How many lanes a call is worth: enough tasks for many cores, within a limit of memory.
  static std::int64_t count(const Ensemble<T>& ensemble, const Plan& plan) {
    const std::int64_t bytes =
        ensemble.n_trees * ensemble.n_leaves() * (ensemble.n_features + ensemble.n_outputs) * std::int64_t(sizeof(T));
    const std::int64_t affordable = 1 + 2 * kPartialBytes / bytes;
    return std::clamp<std::int64_t>(
        ceil_div(kFewestTasks, plan.n_groups), 1,
        std::max<std::int64_t>(1, std::min({plan.n_blocks, plan.chunk_blocks, affordable})));
  }

  Gradients<T> lane(std::int64_t index) const {
    if (index == 0) return result_;
    const Lane& lane = lanes_[std::size_t(index - 1)];
    return {nullptr,
            lane.split_weight.get(),
            lane.split_bias.get(),
            lane.leaf_weight.get(),
            lane.split_marked.get(),
            lane.leaf_marked.get()};
  }

  void add_up(int n_threads) const {
    if (lanes_.empty()) return;
    run_tasks(ensemble_.n_trees, n_threads, [&](std::int64_t tree) {
      const Gradients<T> to = gradients_of(ensemble_, result_, tree, static_cast<T*>(nullptr));
      for (std::size_t i = 1; i <= lanes_.size(); ++i) {
        const Gradients<T> from = gradients_of(ensemble_, lane(std::int64_t(i)), tree, static_cast<T*>(nullptr));
        add_marked(ensemble_.n_splits(), from.split_marked, to.split_marked, from.split_weight, to.split_weight,
                   ensemble_.n_features);
        add_marked(ensemble_.n_splits(), from.split_marked, to.split_marked, from.split_bias, to.split_bias, 1);
        add_marked(ensemble_.n_leaves(), from.leaf_marked, to.leaf_marked, from.leaf_weight, to.leaf_weight,
                   ensemble_.n_outputs);
      }
    });
  }

 private:
  // Zeros from the system, which costs memory only where something is written.
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  template <typename U>
  using Array = std::unique_ptr<U[], Free>;
  template <typename U>
  static Array<U> Zeros(std::int64_t count) {
    void* memory = std::calloc(std::size_t(count), sizeof(U));
    if (memory == nullptr) throw std::bad_alloc();
    return Array<U>(static_cast<U*>(memory));
  }
  struct Lane {
    Array<T> split_weight, split_bias, leaf_weight;
    Array<std::uint8_t> split_marked, leaf_marked;
  };

  static void add_marked(std::int64_t n_rows, const std::uint8_t* marked, std::uint8_t* to_marked, const T* from, T* to,
                         std::int64_t n_columns) {
    if (to == nullptr) return;
    for (std::int64_t row = 0; row < n_rows; ++row) {
      if (marked[row] == 0) continue;
      to_marked[row] = 1;
      for (std::int64_t c = 0; c < n_columns; ++c) to[row * n_columns + c] += from[row * n_columns + c];
    }
  }

  const Ensemble<T>& ensemble_;
  const Gradients<T>& result_;
  std::vector<Lane> lanes_;
};

}  // namespace

template <typename T>
void backward(const Ensemble<T>& ensemble, const Rows<T>& x, bool sum_trees, const T* grad_output, const Tape<T>* tape,
              const Gradients<T>& gradients, int n_threads) {
  const Plan plan = Plan::of(ensemble, x.n_rows, sum_trees);
  const std::int64_t p = ensemble.n_features, k = ensemble.n_outputs;
  const std::int64_t grad_stride = sum_trees ? k : ensemble.n_trees * k;
  const std::int64_t n_lanes = LaneGradients<T>::count(ensemble, plan);
  const LaneGradients<T> lanes(ensemble, gradients, n_lanes);
  Arena arena;
  Batch<T> batch(plan, p, tape == nullptr, arena);
  const bool partials = plan.n_groups > 1 && gradients.x != nullptr;
  const std::int64_t chunk_size = std::min(plan.chunk_blocks * kBlockRows, plan.n_rows) * p;
  T* partial = partials ? arena.allocate<T>(plan.n_groups * chunk_size) : nullptr;

  for_chunks(plan, [&](std::int64_t first, std::int64_t n_blocks) {
    batch.fill(x, first, n_blocks, n_threads);
    const std::int64_t first_row = plan.row_begin(first);
    run_tasks(n_lanes * plan.n_groups, n_threads, [&](std::int64_t task) {
      const std::int64_t lane = task / plan.n_groups, group = task % plan.n_groups;
      Arena& scratch = thread_scratch();
      for (std::int64_t i = lane * n_blocks / n_lanes; i < (lane + 1) * n_blocks / n_lanes; ++i) {
        const std::int64_t block = first + i, row = plan.row_begin(block);
        const Arena::Mark mark = scratch.mark();
        const Unit<T> unit = batch.unit(ensemble, group, block);
        Arena repeated;
        const Frontier<T>* root = tape == nullptr
                                      ? kernels<T>().forward(unit, nullptr, nullptr, &repeated, scratch)
                                      : tape->contents->parts[std::size_t(block * plan.n_groups + group)].root;
        T* grad_x = gradients.x == nullptr ? nullptr
                    : partials             ? partial + group * chunk_size + (row - first_row) * p
                                           : gradients.x + row * p;
        const T* grad = grad_output + row * grad_stride + (sum_trees ? 0 : group * k);
        kernels<T>().backward(unit, root, grad, grad_stride,
                              gradients_of(ensemble, lanes.lane(lane), plan.tree_begin(group), grad_x), scratch);
        scratch.release(mark);
      }
    });
    if (!partials) return;
    run_tasks(n_blocks, n_threads, [&](std::int64_t i) {
      const std::int64_t row = plan.row_begin(first + i), n_rows = plan.row_begin(first + i + 1) - row;
      add_groups(partial + (row - first_row) * p, plan.n_groups, chunk_size, n_rows * p, gradients.x + row * p);
    });
  });
  lanes.add_up(n_threads);
}

template <typename T>
void reachability(const Ensemble<T>& ensemble, const Rows<T>& x, std::int32_t* leaves, std::int32_t* internal_nodes,
                  std::int32_t* fractional_nodes, int n_threads) {
  const std::int64_t n = x.n_rows, m = ensemble.n_trees;
  if (ensemble.activation == Activation::logistic) {  // dense by definition, whatever underflows
    std::fill_n(leaves, n * m, std::int32_t(ensemble.n_leaves()));
    std::fill_n(internal_nodes, n * m, std::int32_t(ensemble.n_splits()));
    std::fill_n(fractional_nodes, n * m, std::int32_t(ensemble.n_splits()));
    return;
  }
  for (std::int32_t* counts : {leaves, internal_nodes, fractional_nodes}) std::fill_n(counts, n * m, 0);
  const Plan plan = Plan::of(ensemble, n, true);
  Arena arena;
  Batch<T> batch(plan, ensemble.n_features, true, arena);
  for_chunks(plan, [&](std::int64_t first, std::int64_t n_blocks) {
    batch.fill(x, first, n_blocks, n_threads);
    run_tasks(n_blocks * plan.n_groups, n_threads, [&](std::int64_t task) {
      const std::int64_t block = first + task / plan.n_groups, group = task % plan.n_groups;
      const Unit<T> unit = batch.unit(ensemble, group, block);
      const std::int64_t offset = plan.row_begin(block) * m + plan.tree_begin(group);
      const Counts counts{leaves + offset, internal_nodes + offset, fractional_nodes + offset, m};
      kernels<T>().forward(unit, nullptr, &counts, nullptr, thread_scratch());
    });
  });
}

#define SOFTWOOD_INSTANTIATE(T)                                                                                   \
  template class Tape<T>;                                                                                         \
  template void forward(const Ensemble<T>&, const Rows<T>&, bool, T*, Tape<T>*, int);                             \
  template void backward(const Ensemble<T>&, const Rows<T>&, bool, const T*, const Tape<T>*, const Gradients<T>&, \
                         int);                                                                                    \
  template void reachability(const Ensemble<T>&, const Rows<T>&, std::int32_t*, std::int32_t*, std::int32_t*, int);
SOFTWOOD_INSTANTIATE(float)
SOFTWOOD_INSTANTIATE(double)

}  // namespace softwood

// How a call is divided into units of work (a group of trees on a block of samples), and the parts that the drivers of
// all passes share. The division depends on the shape of the call alone, never on the number of threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "debug.h"
#include "kernels.h"
#include "softwood/thread_pool.h"

namespace softwood {

inline constexpr std::int64_t kBlockRows = kMaxSamples;  // samples per unit: enough to use each weight often
inline constexpr std::int64_t kListEntries = 1280;       // trees are grouped until a level has about this many pairs
inline constexpr std::int64_t kMaxGroups = 32;           // each group has its own partial sums of dL/dx
inline constexpr std::int64_t kChunkRows = 4096;         // samples in progress at a time
inline constexpr std::int64_t kPartialBytes = 1 << 24;   // of partial sums in progress at a time

inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
inline std::int64_t round_up(std::int64_t n, std::int64_t step) { return ceil_div(n, step) * step; }

// Blocks are counted over the whole batch, groups over the whole ensemble.
struct Plan {
  std::int64_t n_rows, n_trees;
  std::int64_t n_groups;
  std::int64_t n_blocks;
  std::int64_t chunk_blocks;  // blocks in progress at a time

  std::int64_t tree_begin(std::int64_t group) const { return group * n_trees / n_groups; }
  std::int64_t row_begin(std::int64_t block) const { return std::min(block * kBlockRows, n_rows); }
  std::int64_t block_rows(std::int64_t block) const { return row_begin(block + 1) - row_begin(block); }
  std::int64_t n_units() const { return n_blocks * n_groups; }
  std::int64_t max_chunk_rows() const { return std::min(chunk_blocks * kBlockRows, n_rows); }

  template <typename T>
  static Plan of(const Ensemble<T>& ensemble, std::int64_t n_rows, bool sum_trees) {
    const std::int64_t m = ensemble.n_trees;
    const std::int64_t block = std::min(n_rows, kBlockRows);
    const std::int64_t group_trees =
        std::min(std::max(ceil_div(kListEntries, std::max<std::int64_t>(block, 1)), ceil_div(m, kMaxGroups)),
                 kMaxLeaves / ensemble.n_leaves());
    const std::int64_t n_groups = sum_trees ? ceil_div(m, group_trees) : m;
    const std::int64_t row_bytes = n_groups * (ensemble.n_features + ensemble.n_outputs) * std::int64_t(sizeof(T));
    const std::int64_t chunk_rows = std::clamp(kPartialBytes / row_bytes, kBlockRows, kChunkRows);
    return {n_rows, m, n_groups, ceil_div(n_rows, kBlockRows), chunk_rows / kBlockRows};
  }
};

// Calls body(first block, number of blocks) for one chunk after the other.
template <typename Body>
void for_chunks(const Plan& plan, const Body& body) {
  for (std::int64_t first = 0; first < plan.n_blocks; first += plan.chunk_blocks) {
    body(first, std::min(plan.chunk_blocks, plan.n_blocks - first));
  }
}

// Each thread keeps one arena for its units and returns its memory to the pool after each task.
Arena& thread_scratch();

// parallel_for with scratch memory: calls task(i, scratch) and releases what it allocated there, also if it throws.
template <typename Task>
void run_tasks(std::int64_t n_tasks, int n_threads, const Task& task) {
  parallel_for(n_tasks, n_threads, [&](std::int64_t i) {
    Arena& scratch = thread_scratch();
    const ArenaScope scope(scratch);
    task(i, scratch);
  });
}

// x of one chunk of blocks as the kernels read it; see Kernels::arrange.
template <typename T>
class ArrangedRows {
 public:
  // Only forward passes need panels.
  ArrangedRows(const Plan& plan, std::int64_t n_features, bool with_panels, Arena& arena)
      : plan_(plan),
        n_features_(n_features),
        padded_features_(round_up(n_features, kernels<T>().lanes)),
        panels_size_(round_up(std::min(plan.n_rows, kBlockRows), kernels<T>().panel_rows) * n_features) {
    const std::int64_t n_blocks = std::min(plan.chunk_blocks, plan.n_blocks);
    rows_ = arena.allocate<T>(n_blocks * kBlockRows * padded_features_);
    if (with_panels) panels_ = arena.allocate<T>(n_blocks * panels_size_);
  }

  void fill(const Rows<T>& x, std::int64_t first_block, std::int64_t n_blocks, int n_threads) {
    first_block_ = first_block;
    n_filled_ = n_blocks;
    run_tasks(n_blocks, n_threads, [&](std::int64_t i, Arena&) {
      const Rows<T> rows{x.row(plan_.row_begin(first_block + i)), plan_.block_rows(first_block + i), x.row_stride};
      kernels<T>().arrange(rows, n_features_, block_rows(i), block_panels(i));
    });
  }

  // The unit of a group and a block; the block must belong to the chunk that was filled last.
  Unit<T> unit(const Ensemble<T>& ensemble, std::int64_t group, std::int64_t block) const {
    const std::int64_t tree = plan_.tree_begin(group), i = block - first_block_;
    SOFTWOOD_ASSERT(i >= 0 && i < n_filled_);
    Unit<T> unit;
    unit.x = {block_rows(i), plan_.block_rows(block), padded_features_};
    unit.x_panels = block_panels(i);
    unit.ensemble = ensemble;
    unit.ensemble.n_trees = plan_.tree_begin(group + 1) - tree;
    unit.ensemble.split_weight += tree * ensemble.n_splits() * ensemble.n_features;
    if (ensemble.split_bias != nullptr) unit.ensemble.split_bias += tree * ensemble.n_splits();
    if (ensemble.leaf_weight != nullptr) unit.ensemble.leaf_weight += tree * ensemble.n_leaves() * ensemble.n_outputs;
    return unit;
  }

 private:
  T* block_rows(std::int64_t i) const { return rows_ + i * kBlockRows * padded_features_; }
  T* block_panels(std::int64_t i) const { return panels_ == nullptr ? nullptr : panels_ + i * panels_size_; }

  const Plan& plan_;
  std::int64_t n_features_, padded_features_, panels_size_, first_block_ = 0, n_filled_ = 0;
  T* rows_;
  T* panels_ = nullptr;
};

// Rows [n, width] that every group adds to: each group has its own copy of a chunk, and the copies are summed in the
// order of groups. A single group writes to the result itself.
template <typename T>
class GroupSums {
 public:
  // `result` may be null: nothing is wanted then.
  GroupSums(const Plan& plan, std::int64_t width, T* result, Arena& arena)
      : plan_(plan), width_(width), result_(result), group_stride_(plan.max_chunk_rows() * width) {
    if (plan.n_groups > 1 && result != nullptr) copies_ = arena.allocate<T>(plan.n_groups * group_stride_);
  }

  bool has_copies() const { return copies_ != nullptr; }

  // Where a group writes the rows of a block of the chunk that begins at `first_block`; null without a result.
  T* rows(std::int64_t group, std::int64_t first_block, std::int64_t block) const {
    if (result_ == nullptr) return nullptr;
    if (copies_ == nullptr) return result_ + plan_.row_begin(block) * width_;
    return copies_ + group * group_stride_ + (plan_.row_begin(block) - plan_.row_begin(first_block)) * width_;
  }

  // Writes the sums of one chunk to the result.
  void add_up(std::int64_t first_block, std::int64_t n_blocks, int n_threads) const {
    if (!has_copies()) return;
    run_tasks(n_blocks, n_threads, [&](std::int64_t i, Arena&) {
      const std::int64_t block = first_block + i, size = plan_.block_rows(block) * width_;
      T* const to = result_ + plan_.row_begin(block) * width_;
      std::memcpy(to, rows(0, first_block, block), std::size_t(size) * sizeof(T));
      for (std::int64_t group = 1; group < plan_.n_groups; ++group) {
        const T* from = rows(group, first_block, block);
        for (std::int64_t j = 0; j < size; ++j) to[j] += from[j];
      }
    });
  }

 private:
  const Plan& plan_;
  std::int64_t width_;
  T* result_;
  std::int64_t group_stride_;
  T* copies_ = nullptr;
};

}  // namespace softwood

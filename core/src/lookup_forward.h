// The forward pass over one block, for training and for prediction, whose files differ in their compiler flags. All
// names are local to the including file, so that neither can get the other's code.
#pragma once

#include "activation.h"
#include "lookup_kernels.h"
#include "sixteen.h"

namespace softwood::SOFTWOOD_ISA {
namespace {

// Probabilities of a block's splits to go left and right, in lanes 0 to 14. Lane 15 surely goes left.
struct Sides {
  Sixteen left, right;
};

template <typename Act>
SOFTWOOD_INLINE Sides sides(const Act& activation, const Sixteen& t) {
  using Floats = Vector<float>;
  const Sixteen minor =
      map([&](Floats x) __attribute__((always_inline)) { return activation.minor(absolute<float>(x)); }, t);
  const Sixteen left =
      map([](Floats x, Floats less) __attribute__((always_inline)) { return select_by_sign<float>(x, less, 1 - less); },
          t, minor);
  const Sixteen right =
      map([](Floats x, Floats less) __attribute__((always_inline)) { return select_by_sign<float>(x, 1 - less, less); },
          t, minor);
  return {left, right};
}

// Shuffles of (left, right): for each split, the probability of the step from its ancestor of one level towards it; 1
// (lane 15 of left) where the split itself stands at that level or above it.
template <int kAncestorLevel>
struct StepFrom {
  static constexpr int source(int lane) {
    int node = lane, child = -1, level = 0;
    if (lane == 15) return 15;
    for (int i = node; i > 0; i = (i - 1) / 2) ++level;
    if (level <= kAncestorLevel) return 15;
    for (; level > kAncestorLevel; --level) {
      child = node;
      node = (node - 1) / 2;
    }
    return child == 2 * node + 1 ? node : 16 + node;
  }
};
// For each leaf, the split above it, and the probability of the step from there.
struct LeafParent {
  static constexpr int source(int lane) { return 7 + lane / 2; }
};
struct StepToLeaf {
  static constexpr int source(int lane) { return 7 + lane / 2 + lane % 2 * 16; }
};

// Probabilities of arriving at each split of a block, for a sample that is at its root.
SOFTWOOD_INLINE Sixteen reach_probability(const Sides& sides) {
  return shuffle<StepFrom<0>>(sides.left, sides.right) * shuffle<StepFrom<1>>(sides.left, sides.right) *
         shuffle<StepFrom<2>>(sides.left, sides.right);
}

SOFTWOOD_INLINE Sixteen leaf_probability(const Sides& sides, const Sixteen& reach) {
  return shuffle<LeafParent>(reach) * shuffle<StepToLeaf>(sides.left, sides.right);
}

// Row `row` of rows of 16. Unsigned numbers of 32 bits need no instruction to become an address.
template <typename T>
SOFTWOOD_INLINE T* row_of(T* rows, std::uint32_t row) {
  return rows + std::size_t(row) * kBlockLanes;
}

// Rows of values that stay in the first-level cache while sample after sample reads them.
constexpr std::int64_t kTileRows = 384;

// Calls body(begin, end) for runs of the slots that are not lazy: of one kind, and with few rows of values.
template <typename Body>
SOFTWOOD_INLINE void for_each_tile(const LookupBlock& block, const Body& body) {
  for (std::int32_t begin = 0, end; begin < block.n_dense; begin = end) {
    const std::int32_t kind_end = begin < block.n_interpolated ? block.n_interpolated : block.n_dense;
    std::int64_t n_rows = 0;
    for (end = begin; end < kind_end; ++end) {
      n_rows += block.columns[block.slots[end].column].n_entries;
      if (n_rows > kTileRows && end > begin) break;
    }
    body(begin, end);
  }
}

// Calls body with kAtOnce samples j, j + 1, ... at a time, then with what is left one by one.
template <int kAtOnce, typename Body>
SOFTWOOD_INLINE void for_samples(std::int64_t count, const Body& body) {
  std::int64_t j = 0;
  for (; j + kAtOnce <= count; j += kAtOnce) body(j, std::integral_constant<int, kAtOnce>{});
  for (; j < count; ++j) body(j, std::integral_constant<int, 1>{});
}

SOFTWOOD_INLINE std::int64_t sample_of(const LookupList& list, std::int64_t j) {
  return list.sample != nullptr ? list.sample[j] : j;
}

// What a slot adds to the split values t of some samples, of whose cells it reads one each.
struct ReadInterpolated {
  static SOFTWOOD_INLINE void add(const LookupBlock& block, const LookupSlot& slot, const LookupCell& cell,
                                  Sixteen& t) {
    const float* const value = row_of(block.values, slot.value_row + cell.entry);
    const Sixteen low = load_sixteen(value);
    t += low;
    t += (load_sixteen(value + kBlockLanes) - low) * cell.fraction;
  }
};
struct ReadPlain {
  static SOFTWOOD_INLINE void add(const LookupBlock& block, const LookupSlot& slot, const LookupCell& cell,
                                  Sixteen& t) {
    t += load_sixteen(row_of(block.values, slot.value_row + cell.entry));
  }
};
struct ReadLazy {
  static SOFTWOOD_INLINE void add(const LookupBlock& block, const LookupSlot& slot, const LookupCell& cell,
                                  Sixteen& t) {
    const float scale = block.columns[slot.column].level_scale[cell.entry];
    t += load_sixteen(row_of(block.table, slot.parameter_row + cell.entry)) * scale;
  }
};

// t += what slots begin, ..., end - 1 add, for all samples of the list. The chain of additions to one t is long, so
// four samples are followed at once.
template <typename Read>
void add_slots(const LookupVisit& visit, std::int32_t begin, std::int32_t end, float* t) {
  const LookupBlock block = visit.block;  // a copy that no store can change
  for_samples<4>(visit.list.count, [&](std::int64_t j, auto n_at_once) __attribute__((always_inline)) {
    constexpr int n = n_at_once;
    const LookupCell* row[n];
    Sixteen sum[n];
#pragma GCC unroll 4
    for (int i = 0; i < n; ++i) {
      row[i] = visit.cells + sample_of(visit.list, j + i) * visit.n_columns;
      sum[i] = load_sixteen(t + (j + i) * kBlockLanes);
    }
    for (const LookupSlot* slot = block.slots + begin; slot < block.slots + end; ++slot) {
#pragma GCC unroll 4
      for (int i = 0; i < n; ++i) Read::add(block, *slot, row[i][slot->column], sum[i]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < n; ++i) store_sixteen(t + (j + i) * kBlockLanes, sum[i]);
  });
}

// Split values of all samples of the list. Each is a sum in the order of slots, beginning with the bias.
void split_values(const LookupVisit& visit, float* t) {
  const LookupBlock& block = visit.block;
  const Sixteen bias = load_sixteen(block.values);
  for (std::int64_t j = 0; j < visit.list.count; ++j) store_sixteen(t + j * kBlockLanes, bias);
  for_each_tile(block, [&](std::int32_t begin, std::int32_t end) {
    if (begin < block.n_interpolated)
      add_slots<ReadInterpolated>(visit, begin, end, t);
    else
      add_slots<ReadPlain>(visit, begin, end, t);
  });
  if (block.n_dense < block.n_slots) add_slots<ReadLazy>(visit, block.n_dense, block.n_slots, t);
}

template <typename Act, bool kLeaves>
void forward_block(const LookupVisit& visit, const LookupForward& out, const Act& activation) {
  const std::int64_t k = visit.n_outputs;
  split_values(visit, out.t);
  for (std::int64_t j = 0; j < visit.list.count; ++j) {
    const Sides at = sides(activation, load_sixteen(out.t + j * kBlockLanes));
    Sixteen probability = leaf_probability(at, reach_probability(at));
    if (visit.list.probability != nullptr) probability = probability * visit.list.probability[j];
    if constexpr (kLeaves) {
      const std::int64_t sample = sample_of(visit.list, j);
      float* const score = out.scores + sample * k * kBlockLanes;
      for (std::int64_t o = 0; o < k * kBlockLanes; o += kBlockLanes) {
        store_sixteen(score + o, load_sixteen(score + o) + probability * load_sixteen(visit.leaf_weight + o));
      }
      if (out.leaves != nullptr) out.leaves[sample] += count_bits(nonzero_bits(probability));
    } else {
      store_sixteen(out.child_probability + j * kBlockLanes, probability);
      out.reached[j] = std::uint16_t(nonzero_bits(probability));
    }
  }
}

template <typename Body>
SOFTWOOD_INLINE void with_activation(Activation activation, float gamma, const Body& body) {
  switch (activation) {
    case Activation::smooth_step:
      return body(SmoothStep<float>(gamma));
    case Activation::smoother_step:
      return body(SmootherStep<float>(gamma));
    case Activation::logistic:
      return body(Logistic<float>(gamma));
  }
}

void forward(const LookupVisit& visit, const LookupForward& out) {
  const FlushSubnormals flushing;
  with_activation(visit.activation, visit.gamma, [&](const auto& activation) {
    if (visit.leaf_weight != nullptr)
      forward_block<std::decay_t<decltype(activation)>, true>(visit, out, activation);
    else
      forward_block<std::decay_t<decltype(activation)>, false>(visit, out, activation);
  });
}

void sum_all_lanes(const float* lanes, std::int64_t n, float* sums) {
  for (std::int64_t i = 0; i < n; ++i) sums[i] = sum_lanes(lanes + i * kBlockLanes);
}

constexpr LookupKernels kForwardKernels = {&forward, &sum_all_lanes};

}  // namespace
}  // namespace softwood::SOFTWOOD_ISA

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

// The split values of one sample. Two partial sums, in a fixed order.
SOFTWOOD_INLINE Sixteen split_values(const LookupBlock& block, const LookupCell* row) {
  Sixteen t = load_sixteen(block.values), upper{};
  const LookupSlot* slot = block.slots;
  for (const LookupSlot* end = block.slots + block.n_interpolated; slot < end; ++slot) {
    const LookupCell cell = row[slot->column];
    const float* const value = block.values + std::int64_t(slot->value_row + cell.entry) * kBlockLanes;
    t += load_sixteen(value) * (1 - cell.fraction);
    upper += load_sixteen(value + kBlockLanes) * cell.fraction;
  }
  for (const LookupSlot* end = block.slots + block.n_dense; slot < end; ++slot) {
    const std::int64_t value_row = slot->value_row + row[slot->column].entry;
    t += load_sixteen(block.values + value_row * kBlockLanes);
  }
  for (const LookupSlot* end = block.slots + block.n_slots; slot < end; ++slot) {
    const std::int32_t entry = row[slot->column].entry;
    const float scale = block.columns[slot->column].level_scale[entry];
    upper += load_sixteen(block.table + std::int64_t(slot->parameter_row + entry) * kBlockLanes) * scale;
  }
  return t + upper;
}

template <typename Act, bool kLeaves>
void forward_block(const LookupVisit& visit, const LookupForward& out, const Act& activation) {
  const std::int64_t k = visit.n_outputs;
  for (std::int64_t j = 0; j < visit.list.count; ++j) {
    const std::int64_t sample = visit.list.sample != nullptr ? visit.list.sample[j] : j;
    const Sixteen t = split_values(visit.block, visit.cells + sample * visit.n_columns);
    if (out.t != nullptr) store_sixteen(out.t + j * kBlockLanes, t);
    const Sides at = sides(activation, t);
    Sixteen probability = leaf_probability(at, reach_probability(at));
    if (visit.list.probability != nullptr) probability = probability * visit.list.probability[j];
    if constexpr (kLeaves) {
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

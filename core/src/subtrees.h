// Several dense levels at once, for forward passes that keep no split values: some subtrees at a time on one panel of
// samples, so that their split values are used while they are in the L1 cache.
#pragma once

#include "split_values.h"

namespace softwood::SOFTWOOD_ISA {

// Split values of the subtrees that are computed together take about this many bytes (a part of the L1 cache).
inline constexpr std::int64_t kSubtreeBytes = 20 * 1024;

// Adds what two sibling leaves contribute to the output.
template <int kOutputs, typename T>
SOFTWOOD_INLINE void add_two_leaves(const Routed<T>& routed, const T* left, Vector<T>* sums) {
#pragma GCC unroll 4
  for (int c = 0; c < kOutputs; ++c) {
    sums[c] += routed.left * left[c];
    sums[c] += routed.right * left[kOutputs + c];
  }
}

template <typename T>
class Subtrees {
 public:
  Subtrees(const Ensemble<T>& ensemble, const T* x_panels, std::int64_t padded, Arena& scratch)
      : ensemble_(ensemble), x_panels_(x_panels), padded_(padded), scratch_(scratch) {}

  // Writes the probabilities of the nodes `n_levels` below a range, [n_codes << n_levels, padded], to `below` and
  // returns how many are not 0; or, if `below` is null, adds the leaves to `leaf_sums` [k, padded]. Calls
  // poison(sample) for samples that meet a NaN.
  template <typename Poison>
  std::int64_t expand(const Frontier<T>& frontier, int n_levels, const T* probability, T* below, T* leaf_sums,
                      const Poison& poison) const {
    const std::int64_t p = ensemble_.n_features, k = ensemble_.n_outputs, n_codes = frontier.n_codes;
    const std::int64_t n_splits = (std::int64_t{1} << n_levels) - 1;  // of a subtree
    const std::int64_t fitting = kSubtreeBytes / std::int64_t(sizeof(T)) / kPanelRows<T> / n_splits;
    const std::int64_t n_subtrees = fitting < 1 ? 1 : fitting < n_codes ? fitting : n_codes;
    SubtreeSplits<T> splits(ensemble_, n_subtrees * n_splits, scratch_);
    T* const t = scratch_.allocate<T>(n_subtrees * n_splits * kPanelRows<T>);
    T* const reach = scratch_.allocate<T>(n_splits * kPanelRows<T>);
    std::int64_t n_below = 0;
    for (std::int64_t first = 0; first < n_codes; first += n_subtrees) {
      const std::int64_t end = first + n_subtrees < n_codes ? first + n_subtrees : n_codes;
      splits.choose(frontier.level, frontier.code_begin + first, frontier.code_begin + end, n_levels);
      for (std::int64_t column = 0; column < padded_; column += kPanelRows<T>) {
        splits.evaluate(x_panels_ + column * p, t);
        const Panel panel{.n_levels = n_levels,
                          .n_subtrees = end - first,
                          .first_sample = column,
                          .t = t,
                          .reach = reach,
                          .probability = probability + first * padded_ + column,
                          .below = below == nullptr ? nullptr : below + (first << n_levels) * padded_ + column,
                          .leaves = ensemble_.leaf_weight + ((frontier.code_begin + first) << n_levels) * k,
                          .leaf_sums = leaf_sums + column};
        with_activation(ensemble_, [&](auto activation) {
          with_unrolled(below == nullptr ? k : 0,
                        [&](auto n_outputs) { n_below += route_panel<n_outputs()>(activation, panel, poison); });
        });
      }
    }
    return n_below;
  }

 private:
  // Some subtrees on one panel of samples. Splits are in heap order, one subtree after the other.
  struct Panel {
    int n_levels;
    std::int64_t n_subtrees, first_sample;
    const T* t;            // [splits, kPanelRows]
    T* reach;              // [splits of one subtree, kPanelRows]: scratch for the probabilities inside it
    const T* probability;  // of the first subtree's root; those of the others are `padded` apart
    T* below;              // as for `expand`, of the first child of the first subtree,
    const T* leaves;       // or the weights of its first leaf
    T* leaf_sums;
  };

  // Routes one panel from the roots of some subtrees to `below` if kOutputs is 0, otherwise to the leaves. Returns how
  // many values in `below` are not 0.
  template <int kOutputs, typename Act, typename Poison>
  SOFTWOOD_NOINLINE std::int64_t route_panel(const Act& activation, const Panel& given, const Poison& poison) const {
    constexpr int W = kLanes<T>, V = kTileVectors;
    const Panel panel = given;  // a copy: the compiler knows that no store changes it
    const std::int64_t n_inner = (std::int64_t{1} << (panel.n_levels - 1)) - 1, n_last = n_inner + 1, padded = padded_;
    Integers<T> n_below{};
    T* const reach = panel.reach;
    T* const leaf_sums = panel.leaf_sums;
    Vector<T> sums[V][kOutputs > 0 ? kOutputs : 1];
    for (int v = 0; v < V; ++v) {
      for (int c = 0; c < kOutputs; ++c) sums[v][c] = load(leaf_sums + c * padded + v * W);
    }
    for (std::int64_t i = 0; i < panel.n_subtrees; ++i) {
      const T* const t = panel.t + i * (n_inner + n_last) * kPanelRows<T>;
      Vector<T> total{};  // NaN if some split value is
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) store(reach + v * W, load(panel.probability + i * padded + v * W));
      for (std::int64_t node = 0; node < n_inner; ++node) {
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) {
          const Vector<T> value = load(t + node * kPanelRows<T> + v * W);
          const Routed<T> routed = route<T>(activation, value, load(reach + node * kPanelRows<T> + v * W));
          total += value;
          store(reach + (2 * node + 1) * kPanelRows<T> + v * W, routed.left);
          store(reach + (2 * node + 2) * kPanelRows<T> + v * W, routed.right);
        }
      }
      for (std::int64_t place = 0; place < n_last; ++place) {
        const std::int64_t node = n_inner + place, child = 2 * (i * n_last + place);
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) {
          const Vector<T> value = load(t + node * kPanelRows<T> + v * W);
          const Routed<T> routed = route<T>(activation, value, load(reach + node * kPanelRows<T> + v * W));
          total += value;
          if constexpr (kOutputs > 0) {
            add_two_leaves<kOutputs>(routed, panel.leaves + child * kOutputs, sums[v]);
          } else {
            store(panel.below + child * padded + v * W, routed.left);
            store(panel.below + (child + 1) * padded + v * W, routed.right);
            n_below -= (routed.left != Vector<T>{}) + (routed.right != Vector<T>{});
          }
        }
      }
      if (bits<T>(total != total) != 0) {
        for (std::int64_t at = 0; at < (n_inner + n_last) * kPanelRows<T>; ++at) {
          if (t[at] != t[at] && reach[at] != 0) poison(panel.first_sample + at % kPanelRows<T>);
        }
      }
    }
    for (int v = 0; v < V; ++v) {
      for (int c = 0; c < kOutputs; ++c) store(leaf_sums + c * padded + v * W, sums[v][c]);
    }
    return sum_integers<T>(n_below);
  }

  const Ensemble<T>& ensemble_;
  const T* x_panels_;
  const std::int64_t padded_;
  Arena& scratch_;
};

}  // namespace softwood::SOFTWOOD_ISA

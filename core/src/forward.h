// Algorithm 1 of the paper (conditional forward pass) for one unit: a group of trees on a block of samples.
//
// The paper traverses depth first, one sample and node at a time. Here a level is computed at once for all samples that
// reach it, in one of two forms. While most samples reach most nodes (always in the top levels; in all levels when
// training begins) the level is *dense*: a matrix product over all nodes and samples. When fewer pairs are reached, the
// level is a *list* of them, whose cost is proportional to its length. A dense range of nodes that exceeds the cache is
// halved, and its halves are completed one after the other. Where almost all pairs are reached, some further levels are
// dense without a check, and are computed together (subtrees.h) unless their split values have to be kept.
//
// A child is reached if and only if its probability is not 0: one rule for both forms and both passes. The output is
// the same bit for bit with a tape or without one: the same levels are dense, and sums are taken in the same order.
#pragma once

#include "split_values.h"
#include "subtrees.h"

namespace softwood::SOFTWOOD_ISA {

// A level is dense if at least this share of its (node, sample) pairs is reached.
inline constexpr double kDenseShare = 0.45;
// With fewer samples most lanes of a dense level would be empty.
template <typename T>
inline constexpr std::int64_t kMinDenseSamples = kLanes<T>;
// Probabilities of a dense range take at most this many bytes (a part of the L2 cache).
inline constexpr std::int64_t kRangeBytes = 256 * 1024;
// If at least this share is reached, some further levels are dense without a check: at most kUncheckedLevels.
inline constexpr double kUncheckedShare = 0.95;
inline constexpr int kUncheckedLevels = 5;

// Probabilities of the roots, [n_trees, padded]: 1 for the samples of the block, 0 for the padding.
template <typename T>
inline T* root_probabilities(std::int64_t n_trees, std::int64_t n_samples, std::int64_t padded, Arena& scratch) {
  T* const result = scratch.allocate<T>(n_trees * padded);
  for (std::int64_t tree = 0; tree < n_trees; ++tree) {
    for (std::int64_t i = 0; i < padded; ++i) result[tree * padded + i] = i < n_samples ? T(1) : T(0);
  }
  return result;
}

template <typename T>
class Forward {
 public:
  Forward(const Unit<T>& unit, T* output, const Counts* counts, Arena* keep, Arena& scratch)
      : unit_(unit),
        ensemble_(unit.ensemble),
        output_(output),
        counts_(counts),
        tape_(keep != nullptr ? *keep : scratch),
        scratch_(scratch),
        keep_(keep != nullptr),
        n_(unit.x.n_rows),
        padded_((n_ + kPanelRows<T> - 1) / kPanelRows<T> * kPanelRows<T>) {
    SOFTWOOD_ASSERT(n_ <= kMaxSamples && ensemble_.n_trees * ensemble_.n_leaves() <= kMaxLeaves);
  }

  const Frontier<T>* run() {
    if (output_ != nullptr) {
      for (std::int64_t i = 0; i < n_ * ensemble_.n_outputs; ++i) output_[i] = 0;
    }
    leaf_sums_ = scratch_.allocate<T>(kMaxUnrolled * padded_);
    const T* const probability = root_probabilities<T>(ensemble_.n_trees, n_, padded_, scratch_);
    const Frontier<T>* root = descend(0, 0, ensemble_.n_trees, probability, ensemble_.n_trees * n_, 0);
    if (has_leaf_sums_) add_transposed(leaf_sums_);
    return keep_ ? root : nullptr;
  }

 private:
  // `probability` is [n_codes, padded samples]; at most `n_reached` of its values are not 0. Levels before
  // `dense_until` are dense without a check.
  Frontier<T>* descend(int level, std::int64_t code_begin, std::int64_t n_codes, const T* probability,
                       std::int64_t n_reached, int dense_until) {
    const Arena::Mark tape_mark = tape_.mark(), scratch_mark = scratch_.mark();
    Frontier<T>* frontier = tape_.allocate<Frontier<T>>(1);
    *frontier = {.level = level, .code_begin = code_begin, .n_codes = n_codes};
    SOFTWOOD_ASSERT(count_reached(probability, n_codes) <= n_reached);
    const double share = double(n_reached) / double(n_codes * n_);
    const bool is_dense = level < dense_until;
    if (!is_dense) dense_until = level + unchecked_levels(level, share);
    if (level == ensemble_.depth) {
      finish_leaves(*frontier, probability);
    } else if (!is_dense && (n_ < kMinDenseSamples<T> || share < kDenseShare)) {
      frontier->fate = Frontier<T>::Fate::listed;
      frontier->list = collect(*frontier, probability, n_reached);
      finish_list(level, frontier->list);
    } else if (!is_dense && n_codes > 1 && range_bytes(*frontier, dense_until) > kRangeBytes) {
      frontier->fate = Frontier<T>::Fate::halved;
      const std::int64_t half = n_codes / 2;
      const std::int64_t n_first = count_reached(probability, half);
      frontier->first = descend(level, code_begin, half, probability, n_first, 0);
      frontier->second =
          descend(level, code_begin + half, n_codes - half, probability + half * padded_, n_reached - n_first, 0);
    } else {
      frontier->fate = Frontier<T>::Fate::expanded;
      // With a tape several levels at once are no faster, because all split values are written to memory anyway.
      expand(*frontier, keep_ || counts_ != nullptr ? 1 : dense_until - level, probability, n_reached, dense_until);
    }
    scratch_.release(scratch_mark);
    if (!keep_) tape_.release(tape_mark);
    return frontier;
  }

  // `n_levels` levels of a dense range, beginning with `frontier`, and everything below them.
  void expand(Frontier<T>& frontier, int n_levels, const T* probability, std::int64_t n_reached, int dense_until) {
    const int level_below = frontier.level + n_levels;
    const std::int64_t codes_below = frontier.code_begin << n_levels, n_codes_below = frontier.n_codes << n_levels;
    const bool adds_leaves = adds_leaves_at(level_below);
    T* below = adds_leaves ? nullptr : scratch_.template allocate<T>(n_codes_below * padded_);
    if (adds_leaves && output_ != nullptr && !has_leaf_sums_) {
      for (std::int64_t i = 0; i < ensemble_.n_outputs * padded_; ++i) leaf_sums_[i] = 0;
      has_leaf_sums_ = true;
    }
    std::int64_t n_below = 0;
    if (n_levels > 1) {
      Subtrees<T> subtrees(ensemble_, unit_.x_panels, padded_, scratch_);
      n_below = subtrees.expand(frontier, n_levels, probability, below, leaf_sums_,
                                [&](std::int64_t sample) { poison(sample); });
    } else {
      frontier.t = tape_.template allocate<T>(frontier.n_codes * padded_);
      range_split_values(ensemble_, unit_.x_panels, padded_, frontier, scratch_);
      if (!adds_leaves)
        n_below = n_reached + expand_level(frontier, probability, below);
      else if (output_ != nullptr)
        finish_last_splits(frontier, probability);
    }
    if (adds_leaves) {
      frontier.first = tape_.template allocate<Frontier<T>>(1);
      *frontier.first = {.level = level_below, .code_begin = codes_below, .n_codes = n_codes_below};
    } else {
      frontier.first = descend(level_below, codes_below, n_codes_below, below, n_below, dense_until);
    }
  }

  // How many levels, beginning with this one, are dense if this one is. The root is always reached, so it says nothing
  // about the levels below it. The remaining levels are divided evenly.
  int unchecked_levels(int level, double share) const {
    if (level == 0 || level == ensemble_.depth || share < kUncheckedShare) return 1;
    const int n_left = ensemble_.depth - level, n_times = (n_left + kUncheckedLevels - 1) / kUncheckedLevels;
    return (n_left + n_times - 1) / n_times;
  }

  // Whether the probabilities of a level are used at once and never stored: those of leaves with few outputs.
  bool adds_leaves_at(int level) const {
    return level == ensemble_.depth && ensemble_.n_outputs <= kMaxUnrolled && counts_ == nullptr;
  }

  // Memory for the probabilities of the largest level up to the next check.
  std::int64_t range_bytes(const Frontier<T>& frontier, int dense_until) const {
    const int n_levels = dense_until - frontier.level - (adds_leaves_at(dense_until) ? 1 : 0);
    return (frontier.n_codes << n_levels) * padded_ * std::int64_t(sizeof(T));
  }

  std::int64_t count_reached(const T* probability, std::int64_t n_codes) const {
    Integers<T> count{};
    for (std::int64_t i = 0; i < n_codes * padded_; i += kLanes<T>) count -= load(probability + i) != Vector<T>{};
    return sum_integers<T>(count);
  }

  // Probabilities of the children, [2 n_codes, padded]; returns the number of fractional pairs, which have two
  // children. Not fused with the matrix product: its chain of dependent instructions would delay the next tile.
  std::int64_t expand_level(const Frontier<T>& frontier, const T* probability, T* below) const {
    std::int64_t n_fractional = 0;
    with_activation(ensemble_, [&](auto activation) {
      Integers<T> count{}, nan{};
      for (std::int64_t code = 0; code < frontier.n_codes; ++code) {
        const T* from = probability + code * padded_;
        const T* t = frontier.t + code * padded_;
        T* left = below + 2 * code * padded_;
        T* right = left + padded_;
        for (std::int64_t i = 0; i < padded_; i += kLanes<T>) {
          const Vector<T> value = load(t + i);
          const Routed<T> routed = route<T>(activation, value, load(from + i));
          nan |= value != value;
          store(left + i, routed.left);
          store(right + i, routed.right);
          count -= routed.minor != Vector<T>{};
        }
      }
      n_fractional = sum_integers<T>(count);
      if (bits<T>(nan) != 0) poison_dense(frontier, probability);
    });
    if (counts_ != nullptr) count_dense(frontier, probability, below);
    return n_fractional;
  }

  // Adds sums [k, padded] to the output.
  void add_transposed(const T* sums) const {
    const std::int64_t k = ensemble_.n_outputs;
    for (std::int64_t i = 0; i < n_; ++i) {
      for (std::int64_t c = 0; c < k; ++c) output_[i * k + c] += sums[c * padded_ + i];
    }
  }

  // The reached pairs of a dense range as a list. `n_reached` may be too large: if a probability underflows, both
  // children of a fractional node can have probability 0.
  List<T>* collect(const Frontier<T>& frontier, const T* probability, std::int64_t n_reached) const {
    List<T>* list = allocate_list<T>(tape_, n_reached, worth_grouping(n_reached, frontier.level), true);
    Appender<T> to(*list);
    to.append_range(frontier.code_begin, frontier.n_codes, probability, padded_);
    SOFTWOOD_ASSERT(to.pair - list->pair <= n_reached);
    list->count = to.pair - list->pair;
    pad_list(*list);
    check_list(*list, ensemble_.n_trees << frontier.level, n_, scratch_);
    return list;
  }

  // Whether the list of a level has enough entries per node to be grouped.
  bool worth_grouping(std::int64_t count, int level) const {
    return count >= kGroupedEntries * (ensemble_.n_trees << level);
  }

  // From the list of a level down to the leaves.
  void finish_list(int level, List<T>* list) const {
    for (; level < ensemble_.depth; ++level, list = list->next) {
      const Bounds bounds = list_split_values(ensemble_, unit_.x, level, *list, scratch_);
      if (bounds.has_nan) {
        for (std::int64_t j = 0; j < list->count; ++j) {
          if (list->t[j] != list->t[j]) poison(sample_of(list->pair[j]));
        }
      }
      const std::int64_t n_below = bounds.left + bounds.right;
      const bool grouped = list->grouped && worth_grouping(n_below, level + 1);
      list->next = allocate_list<T>(tape_, n_below, grouped, level + 1 < ensemble_.depth);
      with_activation(ensemble_, [&](auto activation) {
        if (grouped)
          partition(activation, bounds, *list, scratch_);
        else
          branch(activation, *list);
      });
      check_list(*list->next, ensemble_.n_trees << (level + 1), n_, scratch_);
      if (counts_ != nullptr) count_list(level, *list);
    }
    if (output_ != nullptr) list_output(ensemble_, *list, n_, output_, scratch_);
    if (counts_ != nullptr) {
      for (std::int64_t j = 0; j < list->count; ++j) ++counts_->leaves[index_of(level, list->pair[j])];
    }
  }

  // Dense splits directly above the leaves, with few outputs: the probabilities of the leaves are used at once.
  void finish_last_splits(const Frontier<T>& frontier, const T* probability) const {
    with_activation(ensemble_, [&](auto activation) {
      with_unrolled(ensemble_.n_outputs, [&](auto n_outputs) {
        if constexpr (n_outputs() > 0) add_last_splits<n_outputs()>(activation, frontier, probability);
      });
    });
  }

  template <int kOutputs, typename Act>
  SOFTWOOD_NOINLINE void add_last_splits(const Act& activation, const Frontier<T>& frontier,
                                         const T* probability) const {
    const std::int64_t n_codes = frontier.n_codes, padded = padded_;
    const T* const leaves = ensemble_.leaf_weight + 2 * frontier.code_begin * kOutputs;
    const T* const split_values = frontier.t;
    T* const leaf_sums = leaf_sums_;
    Integers<T> nan{};
    for (std::int64_t i = 0; i < padded;
         i += kPanelRows<T>) {  // a panel: whole cache lines, or rows would compete for cache sets
      Vector<T> sums[kTileVectors][kOutputs];
      for (int v = 0; v < kTileVectors; ++v) {
        for (int c = 0; c < kOutputs; ++c) sums[v][c] = load(leaf_sums + c * padded + i + v * kLanes<T>);
      }
      for (std::int64_t code = 0; code < n_codes; ++code) {
#pragma GCC unroll 2
        for (int v = 0; v < kTileVectors; ++v) {
          const std::int64_t at = code * padded + i + v * kLanes<T>;
          const Vector<T> t = load(split_values + at);
          nan |= t != t;
          add_two_leaves<kOutputs>(route<T>(activation, t, load(probability + at)), leaves + 2 * code * kOutputs,
                                   sums[v]);
        }
      }
      for (int v = 0; v < kTileVectors; ++v) {
        for (int c = 0; c < kOutputs; ++c) store(leaf_sums + c * padded + i + v * kLanes<T>, sums[v][c]);
      }
    }
    if (bits<T>(nan) != 0) poison_dense(frontier, probability);
  }

  // Dense leaves: adds the transpose of leaf_weight^T probability to the output.
  void finish_leaves(const Frontier<T>& frontier, const T* probability) const {
    const std::int64_t k = ensemble_.n_outputs;
    if (output_ != nullptr) {
      T* transposed = scratch_.template allocate<T>(k * padded_);
      const T* leaves = ensemble_.leaf_weight + frontier.code_begin * k;  // a leaf's row in the group is its code
      gemm<T>(
          k, padded_, frontier.n_codes, [&](std::int64_t j) { return leaves + j; }, k, Strided<T>{probability, padded_},
          write_to<T>([&](std::int64_t j) { return transposed + j * padded_; }));
      add_transposed(transposed);
    }
    if (counts_ != nullptr) {
      for (std::int64_t code = 0; code < frontier.n_codes; ++code) {
        for (std::int64_t i = 0; i < n_; ++i) {
          counts_->leaves[index_of(frontier.level, i, frontier.code_begin + code)] +=
              probability[code * padded_ + i] != 0;
        }
      }
    }
  }

  // The output of a sample that meets a NaN is NaN; it stays so whatever is added to it.
  void poison(std::int64_t sample) const {
    if (output_ == nullptr) return;
    const std::int64_t k = ensemble_.n_outputs;
    for (std::int64_t j = 0; j < k; ++j) output_[sample * k + j] = T(__builtin_nan(""));
  }

  void poison_dense(const Frontier<T>& frontier, const T* probability) const {
    for (std::int64_t i = 0; i < frontier.n_codes * padded_; ++i) {
      if (frontier.t[i] != frontier.t[i] && probability[i] != 0) poison(i % padded_);
    }
  }

  std::int64_t index_of(int level, std::int64_t sample, std::int64_t code) const {
    return sample * counts_->stride + (code >> level);
  }

  std::int64_t index_of(int level, Integer<T> pair) const { return index_of(level, sample_of(pair), code_of(pair)); }

  void count_dense(const Frontier<T>& frontier, const T* probability, const T* below) const {
    for (std::int64_t code = 0; code < frontier.n_codes; ++code) {
      for (std::int64_t i = 0; i < n_; ++i) {
        const std::int64_t at = index_of(frontier.level, i, frontier.code_begin + code);
        const T* children = below + 2 * code * padded_ + i;
        counts_->internal_nodes[at] += probability[code * padded_ + i] != 0;
        counts_->fractional_nodes[at] += children[0] != 0 && children[padded_] != 0;
      }
    }
  }

  // A reached split has one child, or two if it is fractional: the number of fractional splits is that of the children
  // minus that of the parents.
  void count_list(int level, const List<T>& list) const {
    for (std::int64_t j = 0; j < list.count; ++j) {
      const std::int64_t at = index_of(level, list.pair[j]);
      ++counts_->internal_nodes[at];
      --counts_->fractional_nodes[at];
    }
    for (std::int64_t j = 0; j < list.next->count; ++j) {
      ++counts_->fractional_nodes[index_of(level + 1, list.next->pair[j])];
    }
  }

  const Unit<T>& unit_;
  const Ensemble<T>& ensemble_;
  T* output_;
  const Counts* counts_;
  Arena& tape_;
  Arena& scratch_;
  const bool keep_;
  const std::int64_t n_, padded_;
  T* leaf_sums_ = nullptr;  // [k, padded]: what dense leaves add to the output, if there are few outputs
  bool has_leaf_sums_ = false;
};

}  // namespace softwood::SOFTWOOD_ISA

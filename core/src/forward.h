// Algorithm 1 of the paper (conditional forward pass) for one unit: a group of trees on a block of samples.
//
// The paper walks depth first, one sample and node at a time. Here a level is computed at once for all samples that
// reach it, in one of two forms. While most samples reach most nodes (the top levels always; all levels when training
// begins) the level is *dense*: a matrix product over all nodes and samples. Once they thin out the level is a *list*
// of the pairs that are reached, which only pays for what it visits. A dense range of nodes that outgrows the cache is
// halved, and its halves are finished one after the other.
//
// A child is reached if and only if its probability is not 0: one rule for both forms and both passes.
#pragma once

#include "activation.h"
#include "gemm.h"
#include "kernels.h"
#include "lists.h"

namespace softwood::SOFTWOOD_ISA {

// Dense as long as at least this share of the (node, sample) pairs is reached.
inline constexpr double kDenseShare = 0.45;
// Below this many samples most lanes of a dense level would be empty.
template <typename T>
inline constexpr std::int64_t kFewSamples = kLanes<T>;
// Probabilities of a dense range take at most this many bytes (a part of the L2 cache).
inline constexpr std::int64_t kRangeBytes = 256 * 1024;

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
        padded_((n_ + kTileRows - 1) / kTileRows * kTileRows) {}

  const Frontier<T>* run() {
    if (output_ != nullptr) {
      for (std::int64_t i = 0; i < n_ * ensemble_.n_outputs; ++i) output_[i] = 0;
    }
    T* certain = scratch_.allocate<T>(ensemble_.n_trees * padded_);
    for (std::int64_t tree = 0; tree < ensemble_.n_trees; ++tree) {
      for (std::int64_t i = 0; i < padded_; ++i) certain[tree * padded_ + i] = i < n_ ? T(1) : T(0);
    }
    const Frontier<T>* root = descend(0, 0, ensemble_.n_trees, certain, ensemble_.n_trees * n_);
    return keep_ ? root : nullptr;
  }

 private:
  static constexpr int kTileRows = kTileVectors * kLanes<T>;

  // `probability` is [n_codes, padded samples], `n_reached` the number of its values that are not 0.
  Frontier<T>* descend(int level, std::int64_t code_begin, std::int64_t n_codes, const T* probability,
                       std::int64_t n_reached) {
    const Arena::Mark tape_mark = tape_.mark(), scratch_mark = scratch_.mark();
    Frontier<T>* frontier = tape_.allocate<Frontier<T>>(1);
    *frontier = {.level = level, .code_begin = code_begin, .n_codes = n_codes};
    if (level == ensemble_.depth) {
      finish_leaves(*frontier, probability);
    } else if (n_ < kFewSamples<T> || double(n_reached) < kDenseShare * double(n_codes * n_)) {
      frontier->fate = Frontier<T>::Fate::listed;
      frontier->list = collect(*frontier, probability, n_reached);
      finish_list(level, frontier->list);
    } else if (n_codes > 1 && 2 * n_codes * padded_ * std::int64_t(sizeof(T)) > kRangeBytes) {
      frontier->fate = Frontier<T>::Fate::halved;
      const std::int64_t half = n_codes / 2;
      const std::int64_t n_first = count_reached(probability, half);
      frontier->first = descend(level, code_begin, half, probability, n_first);
      frontier->second =
          descend(level, code_begin + half, n_codes - half, probability + half * padded_, n_reached - n_first);
    } else {
      frontier->fate = Frontier<T>::Fate::expanded;
      frontier->t = tape_.allocate<T>(n_codes * padded_);
      split_values(*frontier);
      if (level + 1 == ensemble_.depth && ensemble_.n_outputs <= kSmall && counts_ == nullptr) {
        frontier->first = tape_.allocate<Frontier<T>>(1);
        *frontier->first = {.level = level + 1, .code_begin = 2 * code_begin, .n_codes = 2 * n_codes};
        if (output_ != nullptr) finish_last_splits(*frontier, probability);
      } else {
        T* below = scratch_.allocate<T>(2 * n_codes * padded_);
        const std::int64_t n_below = n_reached + expand(*frontier, probability, below);
        frontier->first = descend(level + 1, 2 * code_begin, 2 * n_codes, below, n_below);
      }
    }
    scratch_.release(scratch_mark);
    if (!keep_) tape_.release(tape_mark);
    return frontier;
  }

  std::int64_t count_reached(const T* probability, std::int64_t n_codes) const {
    Integers<T> count{};
    for (std::int64_t i = 0; i < n_codes * padded_; i += kLanes<T>) count -= load(probability + i) != Vector<T>{};
    return sum_integers<T>(count);
  }

  // t = <w, x> + b of all nodes of the range and all samples.
  void split_values(const Frontier<T>& frontier) const {
    const std::int64_t p = ensemble_.n_features;
    const LevelRows<T> row_of(ensemble_, frontier.level);
    const auto row = [&](std::int64_t i) { return row_of(frontier.code_begin + i); };
    const auto weights = [&](std::int64_t i) { return ensemble_.split_weight + row(i) * p; };
    const T* start = nullptr;
    if (ensemble_.split_bias != nullptr) {
      T* bias = scratch_.template allocate<T>(frontier.n_codes);
      for (std::int64_t i = 0; i < frontier.n_codes; ++i) bias[i] = ensemble_.split_bias[row(i)];
      start = bias;
    }
    const auto finish = write_to<T>([t = frontier.t, padded = padded_](std::int64_t i) { return t + i * padded; });
    // A tile begins at column * p; the product adds `column` itself.
    for (std::int64_t column = 0; column < padded_; column += kTileRows) {
      gemm_column<T, kTileVectors, false>(frontier.n_codes, column, p, weights, 1,
                                          Strided<T>{unit_.x_tiles + column * (p - 1), kTileRows}, start, Tail<T>(1),
                                          finish);
    }
  }

  // Probabilities of the children, [2 n_codes, padded]; returns the number of fractional pairs, which have two. Not
  // merged into the product above: that was slower, as its chain of instructions held up the multiply-adds of the next
  // tile.
  std::int64_t expand(const Frontier<T>& frontier, const T* probability, T* below) const {
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

  // The reached pairs of a dense range as a list. `n_reached` may be too large: where probabilities underflow, both
  // children of a node can have none.
  List<T>* collect(const Frontier<T>& frontier, const T* probability, std::int64_t n_reached) const {
    List<T>* list = allocate_list<T>(tape_, n_reached, is_long(n_reached, frontier.level), true);
    Appender<T> to(*list);
    to.append_range(frontier.code_begin, frontier.n_codes, probability, padded_);
    list->count = to.code - list->code;
    pad_list(*list);
    return list;
  }

  // Whether a list of some level is worth grouping.
  bool is_long(std::int64_t count, int level) const { return count >= kLongRun * (ensemble_.n_trees << level); }

  // From a list of some level down to the leaves.
  void finish_list(int level, List<T>* list) const {
    for (; level < ensemble_.depth; ++level, list = list->next) {
      Bounds bounds;
      const Arena::Mark mark = scratch_.mark();
      with_small(vectors_in<T>(ensemble_.n_features), [&](auto few) {
        bounds = list->grouped ? grouped_split_values<T, few()>(ensemble_, unit_.x, level, *list)
                               : single_split_values<T, few()>(ensemble_, unit_.x, level, *list, scratch_);
      });
      scratch_.release(mark);
      if (bounds.has_nan) {
        for (std::int64_t j = 0; j < list->count; ++j) {
          if (list->t[j] != list->t[j]) poison(list->sample[j]);
        }
      }
      const std::int64_t n_below = bounds.left + bounds.right;
      const bool grouped = list->grouped && is_long(n_below, level + 1);
      list->next = allocate_list<T>(tape_, n_below, grouped, level + 1 < ensemble_.depth);
      with_activation(ensemble_, [&](auto activation) {
        if (grouped)
          partition(activation, bounds, *list, scratch_);
        else
          branch(activation, *list);
      });
      if (counts_ != nullptr) count_list(level, *list);
    }
    if (output_ != nullptr) list_output(ensemble_, *list, output_);
    if (counts_ != nullptr) {
      for (std::int64_t j = 0; j < list->count; ++j) ++counts_->leaves[place(level, list->sample[j], list->code[j])];
    }
  }

  // Dense splits right above the leaves, with few outputs: the probabilities of leaves are used at once.
  void finish_last_splits(const Frontier<T>& frontier, const T* probability) const {
    with_activation(ensemble_, [&](auto activation) {
      with_small(ensemble_.n_outputs, [&](auto few) {
        if constexpr (few() > 0) add_last_splits<few()>(activation, frontier, probability);
      });
    });
  }

  template <int kOutputs, typename Act>
  SOFTWOOD_APART void add_last_splits(const Act& activation, const Frontier<T>& frontier, const T* probability) const {
    const std::int64_t n_codes = frontier.n_codes, padded = padded_;
    const T* const leaves = ensemble_.leaf_weight + 2 * frontier.code_begin * kOutputs;
    const T* const split_values = frontier.t;
    Integers<T> nan{};
    for (std::int64_t i = 0; i < padded; i += kTileRows) {  // whole cache lines: rows that far apart share few sets
      Vector<T> sums[kTileVectors][kOutputs] = {};
      for (std::int64_t code = 0; code < n_codes; ++code) {
        const T* left = leaves + 2 * code * kOutputs;
#pragma GCC unroll 2
        for (int v = 0; v < kTileVectors; ++v) {
          const std::int64_t at = code * padded + i + v * kLanes<T>;
          const Vector<T> t = load(split_values + at);
          const Routed<T> routed = route<T>(activation, t, load(probability + at));
          nan |= t != t;
#pragma GCC unroll 4
          for (int c = 0; c < kOutputs; ++c) sums[v][c] += routed.left * left[c] + routed.right * left[kOutputs + c];
        }
      }
      for (std::int64_t s = 0; s < kTileRows && i + s < n_; ++s) {
        for (int c = 0; c < kOutputs; ++c) output_[(i + s) * kOutputs + c] += sums[s / kLanes<T>][c][s % kLanes<T>];
      }
    }
    if (bits<T>(nan) != 0) poison_dense(frontier, probability);
  }

  // Dense leaves: output^T = leaf_weight^T probability, then added to the output.
  void finish_leaves(const Frontier<T>& frontier, const T* probability) const {
    const std::int64_t k = ensemble_.n_outputs;
    if (output_ != nullptr) {
      T* transposed = scratch_.template allocate<T>(k * padded_);
      const T* leaves = ensemble_.leaf_weight + frontier.code_begin * k;  // a leaf's row in the group is its code
      gemm<T>(
          k, padded_, frontier.n_codes, [&](std::int64_t j) { return leaves + j; }, k, Strided<T>{probability, padded_},
          write_to<T>([&](std::int64_t j) { return transposed + j * padded_; }));
      for (std::int64_t i = 0; i < n_; ++i) {
        for (std::int64_t j = 0; j < k; ++j) output_[i * k + j] += transposed[j * padded_ + i];
      }
    }
    if (counts_ != nullptr) {
      for (std::int64_t code = 0; code < frontier.n_codes; ++code) {
        for (std::int64_t i = 0; i < n_; ++i) {
          counts_->leaves[place(frontier.level, i, frontier.code_begin + code)] += probability[code * padded_ + i] != 0;
        }
      }
    }
  }

  // A sample that met a NaN on its way has no output; whatever is added to it later, it stays NaN.
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

  std::int64_t place(int level, std::int64_t sample, std::int64_t code) const {
    return sample * counts_->stride + (code >> level);
  }

  void count_dense(const Frontier<T>& frontier, const T* probability, const T* below) const {
    for (std::int64_t code = 0; code < frontier.n_codes; ++code) {
      for (std::int64_t i = 0; i < n_; ++i) {
        const std::int64_t at = place(frontier.level, i, frontier.code_begin + code);
        const T* children = below + 2 * code * padded_ + i;
        counts_->internal_nodes[at] += probability[code * padded_ + i] != 0;
        counts_->fractional_nodes[at] += children[0] != 0 && children[padded_] != 0;
      }
    }
  }

  // A reached split has one child, or two if it is fractional: each child counts for its parent, less the parents.
  void count_list(int level, const List<T>& list) const {
    for (std::int64_t j = 0; j < list.count; ++j) {
      const std::int64_t at = place(level, list.sample[j], list.code[j]);
      ++counts_->internal_nodes[at];
      --counts_->fractional_nodes[at];
    }
    for (std::int64_t j = 0; j < list.next->count; ++j) {
      ++counts_->fractional_nodes[place(level + 1, list.next->sample[j], list.next->code[j])];
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
};

}  // namespace softwood::SOFTWOOD_ISA

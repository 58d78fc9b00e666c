// Algorithm 1 of the paper (conditional forward pass) for one unit: a group of trees on a block of samples.
//
// The paper walks depth first, one sample and node at a time. Here a level is computed at once for all samples that
// reach it, in one of two forms. While most samples reach most nodes (the top levels always; all levels when training
// begins) the level is *dense*: a matrix product over all nodes and samples. Once they thin out the level is a *list*
// of the pairs that are reached, which only pays for what it visits. A dense range of nodes that outgrows the cache is
// halved, and its halves are finished one after the other. Where nearly all is reached, some levels more are dense
// without another look, and are computed together unless their split values have to be kept.
//
// A child is reached if and only if its probability is not 0: one rule for both forms and both passes. With a tape or
// without one the output is the same, bit for bit: the same levels are dense, and sums have the same order.
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
// Where at least this share is reached, so it will be for some levels more, which are dense without another look.
inline constexpr double kSureShare = 0.95;
inline constexpr int kSureLevels = 5;
// Split values of several levels at once take about so many bytes (a part of the L1 cache).
inline constexpr std::int64_t kTileBytes = 20 * 1024;

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
    leaf_sums_ = scratch_.allocate<T>(kSmall * padded_);
    const Frontier<T>* root = descend(0, 0, ensemble_.n_trees, certain, ensemble_.n_trees * n_, 0);
    if (has_leaf_sums_) add_transposed(leaf_sums_);
    return keep_ ? root : nullptr;
  }

 private:
  static constexpr int kTileRows = kTileVectors * kLanes<T>;

  // `probability` is [n_codes, padded samples], `n_reached` the number of its values that are not 0. Levels before
  // `dense_until` are known to be dense.
  Frontier<T>* descend(int level, std::int64_t code_begin, std::int64_t n_codes, const T* probability,
                       std::int64_t n_reached, int dense_until) {
    const Arena::Mark tape_mark = tape_.mark(), scratch_mark = scratch_.mark();
    Frontier<T>* frontier = tape_.allocate<Frontier<T>>(1);
    *frontier = {.level = level, .code_begin = code_begin, .n_codes = n_codes};
    const double share = double(n_reached) / double(n_codes * n_);
    const bool is_known = level < dense_until;
    if (!is_known) dense_until = level + sure_levels(level, share);
    if (level == ensemble_.depth) {
      finish_leaves(*frontier, probability);
    } else if (!is_known && (n_ < kFewSamples<T> || share < kDenseShare)) {
      frontier->fate = Frontier<T>::Fate::listed;
      frontier->list = collect(*frontier, probability, n_reached);
      finish_list(level, frontier->list);
    } else if (!is_known && n_codes > 1 && range_bytes(*frontier, dense_until) > kRangeBytes) {
      frontier->fate = Frontier<T>::Fate::halved;
      const std::int64_t half = n_codes / 2;
      const std::int64_t n_first = count_reached(probability, half);
      frontier->first = descend(level, code_begin, half, probability, n_first, 0);
      frontier->second =
          descend(level, code_begin + half, n_codes - half, probability + half * padded_, n_reached - n_first, 0);
    } else {
      frontier->fate = Frontier<T>::Fate::expanded;
      // With a tape it does not pay to take several levels at once, as all split values go to memory anyway.
      expand(*frontier, keep_ || counts_ != nullptr ? 1 : dense_until - level, probability, n_reached, dense_until);
    }
    scratch_.release(scratch_mark);
    if (!keep_) tape_.release(tape_mark);
    return frontier;
  }

  // Levels of a dense range, `frontier` first, and all that lies below them.
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
      n_below = expand_subtrees(frontier, n_levels, probability, below);
    } else {
      frontier.t = tape_.template allocate<T>(frontier.n_codes * padded_);
      split_values(frontier);
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

  // How many levels from this one on are dense, if it is. The root tells nothing about those below it.
  int sure_levels(int level, double share) const {
    if (level == 0 || level == ensemble_.depth || share < kSureShare) return 1;
    const int n_left = ensemble_.depth - level, n_times = (n_left + kSureLevels - 1) / kSureLevels;
    return (n_left + n_times - 1) / n_times;
  }

  // Whether the probabilities of the nodes of a level are used at once: those of leaves with few outputs.
  bool adds_leaves_at(int level) const {
    return level == ensemble_.depth && ensemble_.n_outputs <= kSmall && counts_ == nullptr;
  }

  // Memory for the probabilities of the largest of the levels that follow.
  std::int64_t range_bytes(const Frontier<T>& frontier, int dense_until) const {
    const int n_levels = dense_until - frontier.level - (adds_leaves_at(dense_until) ? 1 : 0);
    return (frontier.n_codes << n_levels) * padded_ * std::int64_t(sizeof(T));
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

  // Some subtrees of a range on kTileRows samples. Splits stand one subtree after the other, in heap order.
  struct Tile {
    int n_levels;
    std::int64_t n_subtrees, first_sample;
    const T* t;            // [splits, kTileRows]
    T* reach;              // [splits of one subtree, kTileRows]: room for the probabilities inside it
    const T* probability;  // of the first subtree's root; those of the others lie padded_ apart
    T* below;              // as for expand_subtrees, of the first child of the first subtree,
    const T* leaves;       // or the weights of its first leaf
  };

  // Several levels of a dense range at once. Writes the probabilities of the nodes below them, [n_codes << n_levels,
  // padded], and returns how many are not 0; or adds up the leaves, if `below` is null. Goes by tiles, so that
  // split values are used while they are in the L1 cache.
  std::int64_t expand_subtrees(const Frontier<T>& frontier, int n_levels, const T* probability, T* below) const {
    const std::int64_t p = ensemble_.n_features, k = ensemble_.n_outputs, n_codes = frontier.n_codes;
    const std::int64_t n_splits = (std::int64_t{1} << n_levels) - 1;  // of a subtree
    const std::int64_t most = kTileBytes / std::int64_t(sizeof(T)) / kTileRows / n_splits;
    const std::int64_t n_subtrees = most < 1 ? 1 : most < n_codes ? most : n_codes, size = n_subtrees * n_splits;
    const T** weights = scratch_.template allocate<const T*>(size);
    T* bias = ensemble_.split_bias == nullptr ? nullptr : scratch_.template allocate<T>(size);
    T* t = scratch_.template allocate<T>(size * kTileRows);
    T* reach = scratch_.template allocate<T>(n_splits * kTileRows);
    std::int64_t n_below = 0;
    for (std::int64_t first = 0; first < n_codes; first += n_subtrees) {
      const std::int64_t end = first + n_subtrees < n_codes ? first + n_subtrees : n_codes;
      std::int64_t n_rows = 0;
      for (std::int64_t i = first; i < end; ++i) {
        for (int depth = 0; depth < n_levels; ++depth) {
          const LevelRows<T> row_of(ensemble_, frontier.level + depth);
          const std::int64_t begin = (frontier.code_begin + i) << depth;
          for (std::int64_t code = begin; code < begin + (std::int64_t{1} << depth); ++code, ++n_rows) {
            weights[n_rows] = ensemble_.split_weight + row_of(code) * p;
            if (bias != nullptr) bias[n_rows] = ensemble_.split_bias[row_of(code)];
          }
        }
      }
      for (std::int64_t column = 0; column < padded_; column += kTileRows) {
        gemm_column<T, kTileVectors, false, true>(
            n_rows, 0, p, [&](std::int64_t i) { return weights[i]; }, 1,
            Strided<T>{unit_.x_tiles + column * p, kTileRows}, bias, Tail<T>(1),
            write_to<T>([&](std::int64_t i) { return t + i * kTileRows; }));
        const Tile tile{.n_levels = n_levels,
                        .n_subtrees = end - first,
                        .first_sample = column,
                        .t = t,
                        .reach = reach,
                        .probability = probability + first * padded_ + column,
                        .below = below == nullptr ? nullptr : below + (first << n_levels) * padded_ + column,
                        .leaves = ensemble_.leaf_weight + ((frontier.code_begin + first) << n_levels) * k};
        with_activation(ensemble_, [&](auto activation) {
          with_small(below == nullptr ? k : 0, [&](auto few) { n_below += route_subtrees<few()>(activation, tile); });
        });
      }
    }
    return n_below;
  }

  // Probabilities from the roots of a tile down, to `below`, if kOutputs is 0, or the leaves. Returns how many are not
  // 0 in `below`.
  template <int kOutputs, typename Act>
  SOFTWOOD_APART std::int64_t route_subtrees(const Act& activation, const Tile& given) const {
    constexpr int W = kLanes<T>, V = kTileVectors;
    const Tile tile = given;  // a copy, which no store can change
    const std::int64_t n_inner = (std::int64_t{1} << (tile.n_levels - 1)) - 1, n_last = n_inner + 1, padded = padded_;
    Integers<T> n_below{};
    T* const reach = tile.reach;
    T* const leaf_sums = leaf_sums_ + tile.first_sample;
    Vector<T> sums[V][kOutputs > 0 ? kOutputs : 1];
    for (int v = 0; v < V; ++v) {
      for (int c = 0; c < kOutputs; ++c) sums[v][c] = load(leaf_sums + c * padded + v * W);
    }
    for (std::int64_t i = 0; i < tile.n_subtrees; ++i) {
      const T* const t = tile.t + i * (n_inner + n_last) * kTileRows;
      Vector<T> total{};  // NaN if some split value is
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) store(reach + v * W, load(tile.probability + i * padded + v * W));
      for (std::int64_t node = 0; node < n_inner; ++node) {
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) {
          const Vector<T> value = load(t + node * kTileRows + v * W);
          const Routed<T> routed = route<T>(activation, value, load(reach + node * kTileRows + v * W));
          total += value;
          store(reach + (2 * node + 1) * kTileRows + v * W, routed.left);
          store(reach + (2 * node + 2) * kTileRows + v * W, routed.right);
        }
      }
      for (std::int64_t place = 0; place < n_last; ++place) {
        const std::int64_t node = n_inner + place, child = 2 * (i * n_last + place);
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) {
          const Vector<T> value = load(t + node * kTileRows + v * W);
          const Routed<T> routed = route<T>(activation, value, load(reach + node * kTileRows + v * W));
          total += value;
          if constexpr (kOutputs > 0) {
            add_two_leaves<kOutputs>(routed, tile.leaves + child * kOutputs, sums[v]);
          } else {
            store(tile.below + child * padded + v * W, routed.left);
            store(tile.below + (child + 1) * padded + v * W, routed.right);
            n_below -= (routed.left != Vector<T>{}) + (routed.right != Vector<T>{});
          }
        }
      }
      if (bits<T>(total != total) != 0) {
        for (std::int64_t at = 0; at < (n_inner + n_last) * kTileRows; ++at) {
          if (t[at] != t[at] && reach[at] != 0) poison(tile.first_sample + at % kTileRows);
        }
      }
    }
    for (int v = 0; v < V; ++v) {
      for (int c = 0; c < kOutputs; ++c) store(leaf_sums + c * padded + v * W, sums[v][c]);
    }
    return sum_integers<T>(n_below);
  }

  // Adds sums [k, padded] to the output.
  void add_transposed(const T* sums) const {
    const std::int64_t k = ensemble_.n_outputs;
    for (std::int64_t i = 0; i < n_; ++i) {
      for (std::int64_t c = 0; c < k; ++c) output_[i * k + c] += sums[c * padded_ + i];
    }
  }

  // The reached pairs of a dense range as a list. `n_reached` may be too large: where probabilities underflow, both
  // children of a node can have none.
  List<T>* collect(const Frontier<T>& frontier, const T* probability, std::int64_t n_reached) const {
    List<T>* list = allocate_list<T>(tape_, n_reached, is_long(n_reached, frontier.level), true);
    Appender<T> to(*list);
    to.append_range(frontier.code_begin, frontier.n_codes, probability, padded_);
    list->count = to.pair - list->pair;
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
          if (list->t[j] != list->t[j]) poison(sample_of(list->pair[j]));
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
    if (output_ != nullptr) list_output(ensemble_, *list, n_, output_, scratch_);
    if (counts_ != nullptr) {
      for (std::int64_t j = 0; j < list->count; ++j) ++counts_->leaves[place(level, list->pair[j])];
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

  template <int kOutputs>
  static SOFTWOOD_INLINE void add_two_leaves(const Routed<T>& routed, const T* left, Vector<T>* sums) {
#pragma GCC unroll 4
    for (int c = 0; c < kOutputs; ++c) {
      sums[c] += routed.left * left[c];
      sums[c] += routed.right * left[kOutputs + c];
    }
  }

  template <int kOutputs, typename Act>
  SOFTWOOD_APART void add_last_splits(const Act& activation, const Frontier<T>& frontier, const T* probability) const {
    const std::int64_t n_codes = frontier.n_codes, padded = padded_;
    const T* const leaves = ensemble_.leaf_weight + 2 * frontier.code_begin * kOutputs;
    const T* const split_values = frontier.t;
    T* const leaf_sums = leaf_sums_;
    Integers<T> nan{};
    for (std::int64_t i = 0; i < padded; i += kTileRows) {  // whole cache lines: rows that far apart share few sets
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

  // Dense leaves: output^T = leaf_weight^T probability, then added to the output.
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

  std::int64_t place(int level, Integer<T> pair) const { return place(level, sample_of(pair), code_of(pair)); }

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
      const std::int64_t at = place(level, list.pair[j]);
      ++counts_->internal_nodes[at];
      --counts_->fractional_nodes[at];
    }
    for (std::int64_t j = 0; j < list.next->count; ++j) {
      ++counts_->fractional_nodes[place(level + 1, list.next->pair[j])];
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
  T* leaf_sums_ = nullptr;  // [k, padded]: what dense leaves add to the output, if outputs are few
  bool has_leaf_sums_ = false;
};

}  // namespace softwood::SOFTWOOD_ISA

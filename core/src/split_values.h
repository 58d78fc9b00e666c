// Split values t = <w, x> + b of (node, sample) pairs: of ranges of nodes on all samples, by matrix products, and of
// lists. Everything in the forward pass that depends on the form of a split is in this file; split_gradients.h is its
// counterpart in the backward pass.
#pragma once

#include "gemm.h"
#include "lists.h"

namespace softwood::SOFTWOOD_ISA {

// The row of the split parameters that belongs to a code of one level.
template <typename T>
struct LevelRows {
  Integer<T> first, per_tree;
  int level;
  LevelRows(const Ensemble<T>& ensemble, int level)
      : first(Integer<T>((std::int64_t{1} << level) - 1)),
        per_tree(Integer<T>(ensemble.n_splits() - first - 1)),
        level(level) {}
  template <typename Code>
  SOFTWOOD_INLINE Code operator()(Code code) const {
    return code + first + (code >> level) * per_tree;
  }
};

// t [n_codes, padded samples] of a dense range, from the panels of x (see Kernels::arrange).
template <typename T>
inline void range_split_values(const Ensemble<T>& ensemble, const T* x_panels, std::int64_t padded,
                               const Frontier<T>& frontier, Arena& scratch) {
  const std::int64_t p = ensemble.n_features;
  const LevelRows<T> row_of(ensemble, frontier.level);
  const auto row = [&](std::int64_t i) { return row_of(frontier.code_begin + i); };
  const auto weights = [&](std::int64_t i) { return ensemble.split_weight + row(i) * p; };
  const T* start = nullptr;
  if (ensemble.split_bias != nullptr) {
    T* bias = scratch.allocate<T>(frontier.n_codes);
    for (std::int64_t i = 0; i < frontier.n_codes; ++i) bias[i] = ensemble.split_bias[row(i)];
    start = bias;
  }
  const auto finish = write_to<T>([t = frontier.t, padded](std::int64_t i) { return t + i * padded; });
  // A panel begins at column * p; the product adds `column` itself.
  for (std::int64_t column = 0; column < padded; column += kPanelRows<T>) {
    gemm_column<T, kTileVectors, false>(frontier.n_codes, column, p, weights, 1,
                                        Strided<T>{x_panels + column * (p - 1), kPanelRows<T>}, start, Tail<T>(1),
                                        finish);
  }
}

// Split values of whole subtrees on one panel of samples at a time. The splits of a subtree are in heap order, one
// subtree after the other.
template <typename T>
class SubtreeSplits {
 public:
  SubtreeSplits(const Ensemble<T>& ensemble, std::int64_t max_splits, Arena& scratch)
      : ensemble_(ensemble),
        weights_(scratch.allocate<const T*>(max_splits)),
        bias_(ensemble.split_bias == nullptr ? nullptr : scratch.allocate<T>(max_splits)) {}

  // Chooses the subtrees of `n_levels` levels below codes begin, ..., end - 1 of some level.
  void choose(int level, std::int64_t begin, std::int64_t end, int n_levels) {
    n_splits_ = 0;
    for (std::int64_t root = begin; root < end; ++root) {
      for (int depth = 0; depth < n_levels; ++depth) {
        const LevelRows<T> row_of(ensemble_, level + depth);
        const std::int64_t first = root << depth;
        for (std::int64_t code = first; code < first + (std::int64_t{1} << depth); ++code, ++n_splits_) {
          weights_[n_splits_] = ensemble_.split_weight + row_of(code) * ensemble_.n_features;
          if (bias_ != nullptr) bias_[n_splits_] = ensemble_.split_bias[row_of(code)];
        }
      }
    }
  }

  // t [chosen splits, kPanelRows] on one panel.
  void evaluate(const T* panel, T* t) const {
    gemm_column<T, kTileVectors, false, true>(
        n_splits_, 0, ensemble_.n_features, [&](std::int64_t i) { return weights_[i]; }, 1,
        Strided<T>{panel, kPanelRows<T>}, bias_, Tail<T>(1),
        write_to<T>([&](std::int64_t i) { return t + i * kPanelRows<T>; }));
  }

 private:
  const Ensemble<T>& ensemble_;
  const T** weights_;
  T* bias_;
  std::int64_t n_splits_ = 0;
};

// The number of vectors in a row of p features; the tail is the last one, which may be whole.
template <typename T>
SOFTWOOD_INLINE std::int64_t vectors_in(std::int64_t p) {
  return (p + kLanes<T> - 1) / kLanes<T>;
}
template <typename T>
SOFTWOOD_INLINE Tail<T> tail_of(std::int64_t p) {
  return Tail<T>((p - 1) % kLanes<T> + 1);
}

// How many entries ahead the weights and their gradients are prefetched, and from which size of a level on: smaller
// levels stay in the L2 cache.
inline constexpr std::int64_t kPrefetchEntries = 24;
inline constexpr std::int64_t kPrefetchBytes = 512 * 1024;

template <typename T>
SOFTWOOD_INLINE bool wants_prefetch(const Ensemble<T>& ensemble, int level) {
  return (ensemble.n_trees << level) * ensemble.n_features * std::int64_t(sizeof(T)) > kPrefetchBytes;
}

template <typename T>
SOFTWOOD_INLINE void prefetch_row(const T* row, std::int64_t p) {
  const std::int64_t n_bytes = p * std::int64_t(sizeof(T)) < 512 ? p * std::int64_t(sizeof(T)) : 512;
  for (std::int64_t offset = 0; offset < n_bytes + 63; offset += 64) {
    __builtin_prefetch(reinterpret_cast<const char*>(row) + offset);
  }
}

// Split values of kLanes samples of one node, whose weights are loaded once. Rows have kVectors vectors, or `n_vectors`
// if kVectors is 0.
template <typename T, int kVectors>
class NodeWeights {
 public:
  SOFTWOOD_INLINE NodeWeights(const T* weights, std::int64_t n_vectors, const Tail<T>& tail)
      : weights_(weights), n_vectors_(n_vectors), tail_(tail) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v)
      loaded_[v] = v < kVectors - 1 ? load(weights + v * W) : load(weights + v * W, tail);
  }

  SOFTWOOD_INLINE Vector<T> operator()(const T* features, const Integer<T>* pairs, std::int64_t stride) const {
    Vector<T> groups[W / G];
#pragma GCC unroll 4
    for (int g = 0; g < W / G; ++g) {
      const T* rows[G];
      Vector<T> sums[G];
#pragma GCC unroll 4
      for (int i = 0; i < G; ++i) {
        rows[i] = features + std::int64_t(sample_of(pairs[g * G + i])) * stride;
        if constexpr (kVectors > 0) {
          sums[i] = loaded_[0] * load(rows[i]);
#pragma GCC unroll 4
          for (int v = 1; v < kVectors; ++v) sums[i] += loaded_[v] * load(rows[i] + v * W);
        }
      }
      if constexpr (kVectors == 0) {
        const std::int64_t last = (n_vectors_ - 1) * W;
        const Vector<T> rest = load(weights_ + last, tail_);
#pragma GCC unroll 4
        for (int i = 0; i < G; ++i) sums[i] = rest * load(rows[i] + last);
        for (std::int64_t f = 0; f < last; f += W) {
          const Vector<T> shared = load(weights_ + f);
#pragma GCC unroll 4
          for (int i = 0; i < G; ++i) sums[i] += shared * load(rows[i] + f);
        }
      }
      groups[g] = sum_parts<T>(sums);
    }
    return add_parts<T>(groups);
  }

 private:
  static constexpr int W = kLanes<T>, G = kPart<T>;
  const T* weights_;
  std::int64_t n_vectors_;
  const Tail<T>& tail_;
  Vector<T> loaded_[kVectors > 0 ? kVectors : 1];
};

// list.t of a grouped list. A vector may extend past the entries of a node: the next node overwrites the rest of it.
template <typename T, int kVectors>
SOFTWOOD_NOINLINE Bounds grouped_split_values(const Ensemble<T>& ensemble, const Rows<T>& x, int level,
                                              const List<T>& list) {
  constexpr int W = kLanes<T>;
  const std::int64_t p = ensemble.n_features, stride = x.row_stride, count = list.count;
  const std::int64_t n_vectors = vectors_in<T>(p);
  const Tail<T> tail = tail_of<T>(p);
  const LevelRows<T> row_of(ensemble, level);
  const T* const features = x.data;
  const Integer<T>* const pairs = list.pair;
  T* const values = list.t;
  BoundsCounter<T> bounds(hard_edge(ensemble));
  std::int64_t j = 0;
  while (j < count) {
    const Integer<T> code = code_of(pairs[j]);
    const std::int64_t row = row_of(code);
    const NodeWeights<T, kVectors> dot(ensemble.split_weight + row * p, n_vectors, tail);
    const T bias = ensemble.split_bias == nullptr ? T(0) : ensemble.split_bias[row];
    const auto step = [&] {
      const Vector<T> t = dot(features, pairs + j, stride) + bias;
      store(values + j, t);
      return t;
    };
    // Whole vectors by a branch, which is predicted; counting the lanes of the node would make each vector wait for the
    // one before it.
    for (; j < count && code_of(pairs[j + W - 1]) == code; j += W) bounds.add(step());
    if (j < count && code_of(pairs[j]) == code) {
      const Integers<T> shared = code_of(load_integers<T>(pairs + j)) == broadcast_integer<T>(code);
      bounds.add(step(), shared);
      j += count_bits(bits<T>(shared));
    }
  }
  return bounds.total(j);
}

// list.t of any list, entry by entry. kVectors as for NodeWeights.
template <typename T, int kVectors>
SOFTWOOD_NOINLINE Bounds single_split_values(const Ensemble<T>& ensemble, const Rows<T>& x, int level,
                                             const List<T>& list, Arena& scratch) {
  constexpr int W = kLanes<T>, G = kPart<T>;
  const std::int64_t p = ensemble.n_features, count = list.count;
  const std::int64_t stride = kVectors > 0 ? kVectors * W : x.row_stride;
  const T* const weights = ensemble.split_weight;
  const T* const bias = ensemble.split_bias;
  const T* const features = x.data;
  const Integer<T>* const pairs = list.pair;
  T* const values = list.t;
  const Tail<T> tail = tail_of<T>(p);
  const std::int64_t last = (kVectors > 0 ? kVectors - 1 : vectors_in<T>(p) - 1) * W;
  const bool prefetch = wants_prefetch(ensemble, level);
  // First the positions of the weights, by vectors and through memory: the loop below is limited by its integer
  // instructions. With many features a position may not fit into an integer, but its row does.
  static_assert(kMaxUnrolled * W * kMaxLeaves < std::int64_t{1} << 31);
  Integer<T>* const positions = scratch.allocate<Integer<T>>(count + W);
  const std::int64_t step = kVectors > 0 ? 1 : p;
  const LevelRows<T> row_of(ensemble, level);
  for (std::int64_t j = 0; j < count; j += W) {
    const Integers<T> rows = row_of(code_of(load_integers<T>(pairs + j)));
    store_integers<T>(positions + j, kVectors > 0 ? rows * Integer<T>(p) : rows);
    for (int i = 0; bias != nullptr && i < W; ++i) values[j + i] = bias[rows[i]];
  }
  BoundsCounter<T> bounds(hard_edge(ensemble));
  for (std::int64_t j = 0; j < count; j += W) {
    if (prefetch && j + kPrefetchEntries < count) {
      for (int i = 0; i < W; ++i) prefetch_row(weights + std::int64_t(positions[j + kPrefetchEntries + i]) * step, p);
    }
    // Partial sums of G entries at a time: more would leave too few registers for their addresses.
    Vector<T> groups[W / G];
#pragma GCC unroll 4
    for (int g = 0; g < W / G; ++g) {
      const T* w[G];
      const T* row[G];
      Vector<T> sums[G];
#pragma GCC unroll 4
      for (int i = 0; i < G; ++i) {
        w[i] = weights + std::int64_t(positions[j + g * G + i]) * step;
        row[i] = features + std::int64_t(sample_of(pairs[j + g * G + i])) * stride;
        sums[i] = load(w[i] + last, tail) * load(row[i] + last);
      }
#pragma GCC unroll 4
      for (std::int64_t f = 0; f < last; f += W) {
#pragma GCC unroll 4
        for (int i = 0; i < G; ++i) sums[i] += load(w[i] + f) * load(row[i] + f);
      }
      groups[g] = sum_parts<T>(sums);
    }
    Vector<T> t = add_parts<T>(groups);
    if (bias != nullptr) t += load(values + j);
    store(values + j, t);
    bounds.add(t);
  }
  return bounds.total((count + W - 1) / W * W);
}

// list.t of any list.
template <typename T>
inline Bounds list_split_values(const Ensemble<T>& ensemble, const Rows<T>& x, int level, const List<T>& list,
                                Arena& scratch) {
  Bounds bounds;
  const ArenaScope scope(scratch);
  with_unrolled(vectors_in<T>(ensemble.n_features), [&](auto n_vectors) {
    bounds = list.grouped ? grouped_split_values<T, n_vectors()>(ensemble, x, level, list)
                          : single_split_values<T, n_vectors()>(ensemble, x, level, list, scratch);
  });
  return bounds;
}

}  // namespace softwood::SOFTWOOD_ISA

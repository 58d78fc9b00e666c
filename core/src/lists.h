// Levels as lists of reached (node, sample) pairs: the sparse half of both passes. See kernels.h for `List`.
//
// While a node has many entries, lists are grouped by node, so that its weights are loaded once. This needs no sorting:
// a stable partition of a grouped list into all left children, then all right children, is grouped again. Further down
// entries stay where they are, as most splits are not fractional, and only the second children have to be moved.
#pragma once

#include "activation.h"
#include "kernels.h"

namespace softwood::SOFTWOOD_ISA {

template <typename T>
SOFTWOOD_INLINE Integers<T> ascending() {
  Integers<T> lane;
  for (int i = 0; i < kLanes<T>; ++i) lane[i] = i;
  return lane;
}

template <typename T>
SOFTWOOD_INLINE std::int64_t sum_integers(Integers<T> v) {
  std::int64_t total = 0;
  for (int i = 0; i < kLanes<T>; ++i) total += v[i];
  return total;
}

// Parts of an entry's pair, or of a vector of them, and the pairs of its children.
template <typename Pair>
SOFTWOOD_INLINE Pair code_of(Pair pair) {
  return pair >> kSampleBits;
}
template <typename Pair>
SOFTWOOD_INLINE Pair sample_of(Pair pair) {
  return pair & int(kMostSamples - 1);
}
template <typename Pair>
SOFTWOOD_INLINE Pair left_child(Pair pair) {
  return pair + (pair & -int(kMostSamples));
}
template <typename Pair>
SOFTWOOD_INLINE Pair right_sibling(Pair left) {
  return left + int(kMostSamples);
}

template <typename T>
inline List<T>* allocate_list(Arena& arena, std::int64_t count, bool grouped, bool with_t) {
  const std::int64_t room = count + 2 * kLanes<T>;
  List<T>* list = arena.allocate<List<T>>(1);
  *list = {};
  list->count = count;
  list->grouped = grouped;
  list->pair = arena.allocate<Integer<T>>(room);
  list->probability = arena.allocate<T>(room);
  if (with_t) list->t = arena.allocate<T>(room);
  return list;
}

// Fills the last vector: entries past the end repeat the last one with probability 0, so they reach nothing.
template <typename T>
inline void pad_list(List<T>& list) {
  const std::int64_t last = list.count - 1;
  for (std::int64_t i = list.count; i < list.count + kLanes<T>; ++i) {
    list.pair[i] = last < 0 ? 0 : list.pair[last];
    list.probability[i] = 0;
  }
}

// Writes chosen lanes one after the other.
template <typename T>
struct Appender {
  Integer<T>* pair;
  T* value;

  explicit Appender(const List<T>& list, std::int64_t from = 0)
      : pair(list.pair + from), value(list.probability + from) {}

  SOFTWOOD_INLINE void append(std::uint32_t chosen, Integers<T> pairs, Vector<T> values) {
    store_integers<T>(pair, compress<T>(pairs, chosen));
    store(value, compress<T>(values, chosen));
    const int n = count_bits(chosen);
    pair += n;
    value += n;
  }

  // Those of a range of nodes [n_codes, padded samples] whose value is not 0.
  void append_range(std::int64_t code_begin, std::int64_t n_codes, const T* values, std::int64_t padded) {
    for (std::int64_t i = 0; i < n_codes; ++i) {
      Integers<T> pairs = ascending<T>() + Integer<T>((code_begin + i) << kSampleBits);
      for (std::int64_t s = 0; s < padded; s += kLanes<T>, pairs += kLanes<T>) {
        const Vector<T> chosen = load(values + i * padded + s);
        append(bits<T>(chosen != Vector<T>{}), pairs, chosen);
      }
    }
  }
};

// Calls body(std::integral_constant<int, n>) for an n from 1 to kSmall, which is worth unrolling, else with 0.
inline constexpr int kSmall = 4;
template <typename Body>
SOFTWOOD_INLINE void with_small(std::int64_t n, Body&& body) {
  switch (n) {
    case 1:
      return body(std::integral_constant<int, 1>{});
    case 2:
      return body(std::integral_constant<int, 2>{});
    case 3:
      return body(std::integral_constant<int, 3>{});
    case 4:
      return body(std::integral_constant<int, 4>{});
    default:
      return body(std::integral_constant<int, 0>{});
  }
}

// Vectors in a row of p features; `tail` stands for the last one, which may be whole.
template <typename T>
SOFTWOOD_INLINE std::int64_t vectors_in(std::int64_t p) {
  return (p + kLanes<T> - 1) / kLanes<T>;
}
template <typename T>
SOFTWOOD_INLINE Tail<T> tail_of(std::int64_t p) {
  return Tail<T>((p - 1) % kLanes<T> + 1);
}

// Rows of the split parameters of one level, by code.
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

// How many entries ahead the weights and their gradients are asked for, and from what size of a level on: smaller ones
// stay in the L2 cache.
inline constexpr std::int64_t kPrefetchEntries = 24;
inline constexpr std::int64_t kPrefetchBytes = 512 * 1024;

template <typename T>
SOFTWOOD_INLINE bool wants_prefetch(const Ensemble<T>& ensemble, int level) {
  return (ensemble.n_trees << level) * ensemble.n_features * std::int64_t(sizeof(T)) > kPrefetchBytes;
}

// Entries of a node, on average, from which on a list is grouped.
inline constexpr std::int64_t kLongRun = 16;

template <typename T>
SOFTWOOD_INLINE void prefetch_row(const T* row, std::int64_t p) {
  const std::int64_t n_bytes = p * std::int64_t(sizeof(T)) < 512 ? p * std::int64_t(sizeof(T)) : 512;
  for (std::int64_t offset = 0; offset < n_bytes + 63; offset += 64) {
    __builtin_prefetch(reinterpret_cast<const char*>(row) + offset);
  }
}

// How many children a list has on each side, or a few more, and whether some split value is NaN.
struct Bounds {
  std::int64_t left, right;
  bool has_nan;
};

template <typename T>
class BoundsCounter {
 public:
  // A split value at or beyond `edge` routes to one side only.
  explicit BoundsCounter(T edge) : edge_(edge) {}

  SOFTWOOD_INLINE void add(Vector<T> t, Integers<T> counted = ~Integers<T>{}) {
    only_left_ -= (t >= broadcast<T>(edge_)) & counted;  // not so NaN, which counts on both sides
    only_right_ -= (t <= broadcast<T>(-edge_)) & counted;
    nan_ |= t != t;
  }

  // Of `n` values that were counted.
  Bounds total(std::int64_t n) const {
    return {n - sum_integers<T>(only_right_), n - sum_integers<T>(only_left_), bits<T>(nan_) != 0};
  }

 private:
  T edge_;
  Integers<T> only_left_{}, only_right_{}, nan_{};
};

// Split values of kLanes samples of one node, whose weights are loaded once. Rows have kVectors vectors, or `n_vectors`
// if that is 0.
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

// list.t of a grouped list. A vector may reach past the entries of a node: those of the next overwrite what it wrote
// there.
template <typename T, int kVectors>
SOFTWOOD_APART Bounds grouped_split_values(const Ensemble<T>& ensemble, const Rows<T>& x, int level,
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
    // Whole vectors by a branch, which is predicted: counting shared lanes would make each of them wait for the last.
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
SOFTWOOD_APART Bounds single_split_values(const Ensemble<T>& ensemble, const Rows<T>& x, int level, const List<T>& list,
                                          Arena& scratch) {
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
  // Where the weights lie first, by vectors and through memory: the loop below is bound by its integer instructions.
  // Places of many features may not fit an integer, but their rows do.
  static_assert(kSmall * W * kMostLeaves < std::int64_t{1} << 31);
  Integer<T>* const places = scratch.allocate<Integer<T>>(count + W);
  const std::int64_t step = kVectors > 0 ? 1 : p;
  const LevelRows<T> row_of(ensemble, level);
  for (std::int64_t j = 0; j < count; j += W) {
    const Integers<T> rows = row_of(code_of(load_integers<T>(pairs + j)));
    store_integers<T>(places + j, kVectors > 0 ? rows * Integer<T>(p) : rows);
    for (int i = 0; bias != nullptr && i < W; ++i) values[j + i] = bias[rows[i]];
  }
  BoundsCounter<T> bounds(hard_edge(ensemble));
  for (std::int64_t j = 0; j < count; j += W) {
    if (prefetch && j + kPrefetchEntries < count) {
      for (int i = 0; i < W; ++i) prefetch_row(weights + std::int64_t(places[j + kPrefetchEntries + i]) * step, p);
    }
    // Partial sums of G entries at a time: more would not leave enough registers for their addresses.
    Vector<T> groups[W / G];
#pragma GCC unroll 4
    for (int g = 0; g < W / G; ++g) {
      const T* w[G];
      const T* row[G];
      Vector<T> sums[G];
#pragma GCC unroll 4
      for (int i = 0; i < G; ++i) {
        w[i] = weights + std::int64_t(places[j + g * G + i]) * step;
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

// Fills list.next, a grouped list with room for what `bounds` says.
template <typename T, typename Act>
SOFTWOOD_APART void partition(const Act& activation, const Bounds& bounds, List<T>& list, Arena& scratch) {
  constexpr int W = kLanes<T>;
  List<T>& next = *list.next;
  const Arena::Mark mark = scratch.mark();
  const List<T>& rights = *allocate_list<T>(scratch, bounds.right, true, false);
  const List<T> from = list;  // a copy, which no store can change
  Appender<T> left(next), right(rights);
  for (std::int64_t j = 0; j < from.count; j += W) {
    const Routed<T> routed = route<T>(activation, load(from.t + j), load(from.probability + j));
    const Integers<T> child = left_child(load_integers<T>(from.pair + j));
    left.append(bits<T>(routed.left != Vector<T>{}), child, routed.left);
    right.append(bits<T>(routed.right != Vector<T>{}), right_sibling(child), routed.right);
  }
  const std::int64_t n_left = left.pair - next.pair, n_right = right.pair - rights.pair;
  __builtin_memcpy(next.pair + n_left, rights.pair, std::size_t(n_right) * sizeof(T));
  __builtin_memcpy(next.probability + n_left, rights.probability, std::size_t(n_right) * sizeof(T));
  scratch.release(mark);
  list.n_left = n_left;
  next.count = n_left + n_right;
  pad_list(next);
}

// Where the last of the vectors of a list begins.
template <typename T>
SOFTWOOD_INLINE std::int64_t last_vector(const List<T>& list) {
  return list.count == 0 ? -1 : (list.count - 1) / kLanes<T> * kLanes<T>;
}

// Fills list.next, a list that is not grouped. From the last vector to the first, so that what is written past the end
// of the first children comes before the second ones.
template <typename T, typename Act>
SOFTWOOD_APART void branch(const Act& activation, List<T>& list) {
  List<T>& next = *list.next;
  const List<T> from = list, to = next;  // copies, which no store can change
  Appender<T> second(to, from.count);
  for (std::int64_t j = last_vector(from); j >= 0; j -= kLanes<T>) {
    const Vector<T> t = load(from.t + j), probability = load(from.probability + j);
    const Vector<T> minor = minor_probability<T>(activation, t, probability);
    const Integers<T> left = left_child(load_integers<T>(from.pair + j)), right = right_sibling(left);
    store_integers<T>(to.pair + j, select_by_sign<T>(t, right, left));
    store(to.probability + j, probability - minor);
    second.append(bits<T>(minor != Vector<T>{}), select_by_sign<T>(t, left, right), minor);
  }
  next.count = second.pair - to.pair;
  pad_list(next);
}

// result[row(j)] += factor[j] * values(j) for all j; `result` is [n_rows, k], with k values in one vector. Sums stand
// one vector a row, apart from their neighbours: stores that overlap hold up the loads that follow.
template <typename T, typename Row, typename Values>
SOFTWOOD_INLINE void add_rows_apart(std::int64_t count, const Row& row, const T* factor, const Values& values,
                                    std::int64_t n_rows, std::int64_t k, T* result, Arena& scratch) {
  constexpr int W = kLanes<T>;
  T* const sums = scratch.allocate<T>(n_rows * W);
  for (std::int64_t i = 0; i < n_rows; ++i) store(sums + i * W, Vector<T>{});
  for (std::int64_t j = 0; j < count; ++j) {
    T* to = sums + std::int64_t(row(j)) * W;
    store(to, load(to) + factor[j] * values(j));
  }
  for (std::int64_t i = 0; i < n_rows; ++i) {
    for (std::int64_t c = 0; c < k; ++c) result[i * k + c] += sums[i * W + c];
  }
}

// output[sample] += probability * leaf, for a list at the leaves.
template <typename T>
SOFTWOOD_APART void list_output(const Ensemble<T>& ensemble, const List<T>& leaves, std::int64_t n_samples, T* output,
                                Arena& scratch) {
  const std::int64_t k = ensemble.n_outputs, count = leaves.count;
  const T* const leaf_weight = ensemble.leaf_weight;
  const Integer<T>* const pairs = leaves.pair;
  const T* const probabilities = leaves.probability;
  const auto sample = [&](std::int64_t j) { return sample_of(pairs[j]); };
  if (k == 1) {
    for (std::int64_t j = 0; j < count; ++j) output[sample(j)] += probabilities[j] * leaf_weight[code_of(pairs[j])];
  } else if (k > kLanes<T>) {
    for (std::int64_t j = 0; j < count; ++j) {
      const T* leaf = leaf_weight + code_of(pairs[j]) * k;
      T* to = output + sample(j) * k;
      const T probability = probabilities[j];
      for (std::int64_t c = 0; c < k; ++c) to[c] += probability * leaf[c];
    }
  } else {
    const Tail<T> tail(k);
    add_rows_apart(
        count, sample, probabilities, [&](std::int64_t j) { return load(leaf_weight + code_of(pairs[j]) * k, tail); },
        n_samples, k, output, scratch);
  }
}

}  // namespace softwood::SOFTWOOD_ISA

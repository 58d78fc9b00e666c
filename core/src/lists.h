// Levels as lists of reached (node, sample) pairs: the sparse half of both passes. See kernels.h for `List`.
//
// A list is kept grouped by node without sorting: a stable partition of a grouped list into all left children, then all
// right children, is grouped again. Lanes stay full across the borders of nodes.
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

template <typename T>
inline List<T>* allocate_list(Arena& arena, std::int64_t count, bool with_t) {
  const std::int64_t room = count + 2 * kLanes<T>;
  List<T>* list = arena.allocate<List<T>>(1);
  *list = {count,   0,      arena.allocate<Integer<T>>(room), arena.allocate<Integer<T>>(room), arena.allocate<T>(room),
           nullptr, nullptr};
  if (with_t) list->t = arena.allocate<T>(room);
  return list;
}

// Fills the last vector: entries past the end repeat the last one with probability 0, so they reach nothing.
template <typename T>
inline void pad_list(List<T>& list) {
  const std::int64_t last = list.count - 1;
  for (std::int64_t i = list.count; i < list.count + kLanes<T>; ++i) {
    list.code[i] = last < 0 ? 0 : list.code[last];
    list.sample[i] = last < 0 ? 0 : list.sample[last];
    list.probability[i] = 0;
  }
}

// Writes chosen lanes one after the other.
template <typename T>
struct Appender {
  Integer<T>* code;
  Integer<T>* sample;
  T* value;

  explicit Appender(const List<T>& list) : code(list.code), sample(list.sample), value(list.probability) {}

  SOFTWOOD_INLINE void append(std::uint32_t chosen, Integers<T> codes, Integers<T> samples, Vector<T> values) {
    store_integers<T>(code, compress<T>(codes, chosen));
    store_integers<T>(sample, compress<T>(samples, chosen));
    store(value, compress<T>(values, chosen));
    const int n = count_bits(chosen);
    code += n;
    sample += n;
    value += n;
  }
};

// Calls body(std::integral_constant<int, n>) for an n from 1 to 4, which is worth unrolling, else with 0.
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

// t = <w, x> of kPart pairs of rows, summed inside 128-bit parts (see simd.h): more rows at a time would not leave
// enough registers for their addresses. Where all pairs share a node, its weights are loaded once. Rows have kVectors
// vectors, or `n_vectors` if that is 0.
template <typename T, bool kOneNode, int kVectors>
SOFTWOOD_INLINE Vector<T> dot_parts(const T* const (&w)[kPart<T>], const T* const (&x)[kPart<T>],
                                    std::int64_t n_vectors, const Tail<T>& tail) {
  constexpr int W = kLanes<T>;
  Vector<T> sums[kPart<T>] = {};
  const auto add = [&](std::int64_t f, auto load_weights) {
    const Vector<T> shared = load_weights(w[0] + f);
#pragma GCC unroll 4
    for (int j = 0; j < kPart<T>; ++j) sums[j] += (kOneNode ? shared : load_weights(w[j] + f)) * load(x[j] + f);
  };
  const auto whole = [](const T* from) { return load(from); };
  if constexpr (kVectors > 0) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors - 1; ++v) add(v * W, whole);
    add((kVectors - 1) * W, [&](const T* from) { return load(from, tail); });
  } else {
    for (std::int64_t v = 0; v < n_vectors - 1; ++v) add(v * W, whole);
    add((n_vectors - 1) * W, [&](const T* from) { return load(from, tail); });
  }
  return sum_parts<T>(sums);
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

// How many entries ahead the weights are asked for, and from what size of a level on: smaller ones stay in the L2
// cache.
inline constexpr std::int64_t kPrefetchEntries = 24;
inline constexpr std::int64_t kPrefetchBytes = 512 * 1024;

// Entries of a node, on average, from which on neighbours mostly share one.
inline constexpr std::int64_t kLongRun = 4;

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

// Fills list.t. A split value at or beyond `edge` routes to one side only. kVectors as for dot_parts.
template <typename T, int kVectors>
inline Bounds list_split_values(const Ensemble<T>& ensemble, const Rows<T>& x, int level, T edge, List<T>& list) {
  constexpr int W = kLanes<T>;
  const std::int64_t p = ensemble.n_features, count = list.count;
  const T* const weights = ensemble.split_weight;
  const T* const bias = ensemble.split_bias;
  const Integer<T>* const codes = list.code;
  const Integer<T>* const samples = list.sample;
  T* const values = list.t;
  const std::int32_t p32 = std::int32_t(p), stride32 = std::int32_t(x.row_stride);
  const Tail<T> tail = tail_of<T>(p);
  const std::int64_t n_vectors = vectors_in<T>(p);
  const LevelRows<T> rows(ensemble, level);
  const bool prefetch = (ensemble.n_trees << level) * p * std::int64_t(sizeof(T)) > kPrefetchBytes;
  // With few entries a node, asking whether neighbours share it costs more (a branch missed) than loading weights
  // twice.
  const bool long_runs = count >= kLongRun * (ensemble.n_trees << level);
  Integers<T> left{}, right{}, nan{};
  for (std::int64_t j = 0; j < count; j += W) {
    if (prefetch && j + kPrefetchEntries < count) {
      for (int i = 0; i < W; ++i) prefetch_row(weights + rows(std::int64_t(codes[j + kPrefetchEntries + i])) * p, p);
    }
    // Offsets first, for all lanes at once: the loop is bound by its integer instructions.
    Integer<T> row[W];
    store_integers<T>(row, rows(load_integers<T>(codes + j)));
    std::int64_t w_offset[W], x_offset[W];
    for (int i = 0; i < W; ++i) w_offset[i] = std::int64_t(row[i]) * p32;
    for (int i = 0; i < W; ++i) x_offset[i] = std::int64_t(samples[j + i]) * stride32;
    Vector<T> groups[W / kPart<T>];
#pragma GCC unroll 4
    for (int g = 0; g < W / kPart<T>; ++g) {
      const T* w[kPart<T>];
      const T* features[kPart<T>];
#pragma GCC unroll 4
      for (int i = 0; i < kPart<T>; ++i) {
        w[i] = weights + w_offset[g * kPart<T> + i];
        features[i] = x.data + x_offset[g * kPart<T> + i];
      }
      groups[g] = long_runs && w[0] == w[kPart<T> - 1] ? dot_parts<T, true, kVectors>(w, features, n_vectors, tail)
                                                       : dot_parts<T, false, kVectors>(w, features, n_vectors, tail);
    }
    Vector<T> t = add_parts<T>(groups);
    if (bias != nullptr) {
      for (int i = 0; i < W; ++i) t[i] += bias[row[i]];
    }
    store(values + j, t);
    left -= ~(t <= broadcast<T>(-edge));  // so that NaN counts
    right -= ~(t >= broadcast<T>(edge));
    nan |= t != t;
  }
  return {sum_integers<T>(left), sum_integers<T>(right), bits<T>(nan) != 0};
}

// Fills list.next, which has room for what `bounds` says, and sets both counts.
template <typename T, typename Act>
inline void partition(const Act& activation, const Bounds& bounds, List<T>& list, Arena& scratch) {
  constexpr int W = kLanes<T>;
  List<T>& next = *list.next;
  const List<T>& rights = *allocate_list<T>(scratch, bounds.right, false);
  const List<T> from = list;  // a copy, which no store can change
  Appender<T> left(next), right(rights);
  for (std::int64_t j = 0; j < from.count; j += W) {
    const Routed<T> routed = route<T>(activation, load(from.t + j), load(from.probability + j));
    const Integers<T> children = 2 * load_integers<T>(from.code + j);
    const Integers<T> sample = load_integers<T>(from.sample + j);
    left.append(bits<T>(routed.left != Vector<T>{}), children, sample, routed.left);
    right.append(bits<T>(routed.right != Vector<T>{}), children + 1, sample, routed.right);
  }
  const std::int64_t n_left = left.code - next.code, n_right = right.code - rights.code;
  __builtin_memcpy(next.code + n_left, rights.code, std::size_t(n_right) * sizeof(T));
  __builtin_memcpy(next.sample + n_left, rights.sample, std::size_t(n_right) * sizeof(T));
  __builtin_memcpy(next.probability + n_left, rights.probability, std::size_t(n_right) * sizeof(T));
  list.n_left = n_left;
  next.count = n_left + n_right;
  pad_list(next);
}

// output[sample] += probability * leaf, for a list at the leaves.
template <typename T>
inline void list_output(const Ensemble<T>& ensemble, const List<T>& leaves, T* output) {
  with_small(ensemble.n_outputs, [&](auto few) {
    const std::int64_t k = few() != 0 ? few() : ensemble.n_outputs;
    for (std::int64_t j = 0; j < leaves.count; ++j) {
      const T* leaf = ensemble.leaf_weight + leaves.code[j] * k;
      T* to = output + leaves.sample[j] * k;
      const T probability = leaves.probability[j];
      for (std::int64_t c = 0; c < k; ++c) to[c] += probability * leaf[c];
    }
  });
}

}  // namespace softwood::SOFTWOOD_ISA

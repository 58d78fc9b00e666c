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
  *list = {count, 0, arena.allocate<Integer<T>>(room), arena.allocate<Integer<T>>(room), arena.allocate<T>(room), nullptr,
           nullptr};
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
    store(code, compress<T>(codes, chosen));
    store(sample, compress<T>(samples, chosen));
    store(value, compress<T>(values, chosen));
    const int n = count_bits(chosen);
    code += n;
    sample += n;
    value += n;
  }
};

// Dot products of kLanes pairs of rows. Where all pairs share a node, its weights are loaded once.
template <typename T, bool kOneNode>
SOFTWOOD_INLINE Vector<T> dot_each(const T* const (&w)[kLanes<T>], const T* const (&x)[kLanes<T>], std::int64_t p,
                                   const Tail<T>& tail) {
  constexpr int W = kLanes<T>;
  Vector<T> sums[W] = {};
  std::int64_t f = 0;
  for (; f + W <= p; f += W) {
    const Vector<T> shared = load(w[0] + f);
#pragma GCC unroll 16
    for (int j = 0; j < W; ++j) sums[j] += (kOneNode ? shared : load(w[j] + f)) * load(x[j] + f);
  }
  if (f < p) {
    const Vector<T> shared = load(w[0] + f, tail);
#pragma GCC unroll 16
    for (int j = 0; j < W; ++j) sums[j] += (kOneNode ? shared : load(w[j] + f, tail)) * load(x[j] + f, tail);
  }
  return sum_each<T>(sums);
}

// Fills list.t and list.n_left; returns the number of right children.
template <typename T, typename Act>
inline std::int64_t list_split_values(const Act& activation, const Ensemble<T>& ensemble, const Rows<T>& x, int level,
                                      List<T>& list) {
  constexpr int W = kLanes<T>;
  const std::int64_t p = ensemble.n_features;
  const Tail<T> tail(p % W);
  const Integer<T> first = Integer<T>((std::int64_t{1} << level) - 1);
  const Integer<T> per_tree = Integer<T>(ensemble.n_splits() - first - 1);
  std::int64_t n_left = 0, n_right = 0;
  for (std::int64_t j = 0; j < list.count; j += W) {
    const Integers<T> code = load_integers<T>(list.code + j);
    Integer<T> rows[W];
    store(rows, code + first + (code >> level) * per_tree);
    const T* w[W];
    const T* features[W];
#pragma GCC unroll 16
    for (int i = 0; i < W; ++i) {
      w[i] = ensemble.split_weight + std::int64_t(rows[i]) * p;
      features[i] = x.row(list.sample[j + i]);
    }
    Vector<T> t = rows[0] == rows[W - 1] ? dot_each<T, true>(w, features, p, tail) : dot_each<T, false>(w, features, p, tail);
    if (ensemble.split_bias != nullptr) {
      Vector<T> bias;
      for (int i = 0; i < W; ++i) bias[i] = ensemble.split_bias[rows[i]];
      t += bias;
    }
    store(list.t + j, t);
    const Routed<T> routed = route<T>(activation, t, load(list.probability + j));
    n_left += count_bits(bits<T>(routed.left != Vector<T>{}));
    n_right += count_bits(bits<T>(routed.right != Vector<T>{}));
  }
  list.n_left = n_left;
  return n_right;
}

// Fills list.next, which has exactly the room that list_split_values counted.
template <typename T, typename Act>
inline void partition(const Act& activation, const List<T>& list, Arena& scratch) {
  constexpr int W = kLanes<T>;
  List<T>& next = *list.next;
  const std::int64_t n_right = next.count - list.n_left;
  const List<T>& rights = *allocate_list<T>(scratch, n_right, false);
  Appender<T> left(next), right(rights);
  for (std::int64_t j = 0; j < list.count; j += W) {
    const Routed<T> routed = route<T>(activation, load(list.t + j), load(list.probability + j));
    const Integers<T> children = 2 * load_integers<T>(list.code + j);
    const Integers<T> sample = load_integers<T>(list.sample + j);
    left.append(bits<T>(routed.left != Vector<T>{}), children, sample, routed.left);
    right.append(bits<T>(routed.right != Vector<T>{}), children + 1, sample, routed.right);
  }
  for (std::int64_t j = 0; j < n_right; j += W) {
    store(next.code + list.n_left + j, load_integers<T>(rights.code + j));
    store(next.sample + list.n_left + j, load_integers<T>(rights.sample + j));
    store(next.probability + list.n_left + j, load(rights.probability + j));
  }
  pad_list(next);
}

// Calls body(std::integral_constant<int, k>) for the small k that are worth unrolling, else with 0.
template <typename Body>
SOFTWOOD_INLINE void with_few_outputs(std::int64_t k, Body&& body) {
  switch (k) {
    case 1: return body(std::integral_constant<int, 1>{});
    case 2: return body(std::integral_constant<int, 2>{});
    case 3: return body(std::integral_constant<int, 3>{});
    case 4: return body(std::integral_constant<int, 4>{});
    default: return body(std::integral_constant<int, 0>{});
  }
}

// output[sample] += probability * leaf, for a list at the leaves.
template <typename T>
inline void list_output(const Ensemble<T>& ensemble, const List<T>& leaves, T* output) {
  with_few_outputs(ensemble.n_outputs, [&](auto few) {
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

// Levels as lists of reached (node, sample) pairs: the sparse half of both passes. kernels.h defines `List`,
// docs/kernels.md has drawings, split_values.h computes the split values of a list.
//
// A list as a whole is grouped by node, or it is not. It is while it has many entries per node on average, so that the
// weights of a node are loaded once. This needs no sorting: a stable partition of a grouped list into all left
// children, then all right children, is grouped again. Further down entries keep their positions, because most splits
// are not fractional, and only the second children are moved.
#pragma once

#include "activation.h"
#include "debug.h"
#include "kernels.h"

namespace softwood::SOFTWOOD_ISA {

// Entries per node, on average, from which on a list is grouped.
inline constexpr std::int64_t kGroupedEntries = 16;

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

// The parts of an entry's pair and the pairs of its children; for single pairs and for vectors of them.
template <typename Pair>
SOFTWOOD_INLINE Pair code_of(Pair pair) {
  return pair >> kSampleBits;
}
template <typename Pair>
SOFTWOOD_INLINE Pair sample_of(Pair pair) {
  return pair & int(kMaxSamples - 1);
}
template <typename Pair>
SOFTWOOD_INLINE Pair left_child(Pair pair) {
  return pair + (pair & -int(kMaxSamples));
}
template <typename Pair>
SOFTWOOD_INLINE Pair right_sibling(Pair left) {
  return left + int(kMaxSamples);
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

// Fills the last vector: entries past the end repeat the last one with probability 0, so they have no effect.
template <typename T>
inline void pad_list(List<T>& list) {
  const std::int64_t last = list.count - 1;
  for (std::int64_t i = list.count; i < list.count + kLanes<T>; ++i) {
    list.pair[i] = last < 0 ? 0 : list.pair[last];
    list.probability[i] = 0;
  }
}

// Debug builds: the properties of a list that the passes rely on.
template <typename T>
inline void check_list([[maybe_unused]] const List<T>& list, [[maybe_unused]] std::int64_t n_codes,
                       [[maybe_unused]] std::int64_t n_samples, [[maybe_unused]] Arena& scratch) {
#if defined(SOFTWOOD_DEBUG)
  const ArenaScope scope(scratch);
  std::uint8_t* const seen = scratch.allocate<std::uint8_t>(n_codes);
  for (std::int64_t code = 0; code < n_codes; ++code) seen[code] = 0;
  for (std::int64_t j = 0; j < list.count; ++j) {
    const std::int64_t code = code_of(list.pair[j]);
    SOFTWOOD_ASSERT(code >= 0 && code < n_codes && sample_of(list.pair[j]) < n_samples);
    SOFTWOOD_ASSERT(list.probability[j] >= 0 && list.probability[j] <= 1);
    const bool is_new = j == 0 || code != code_of(list.pair[j - 1]);
    SOFTWOOD_ASSERT(!list.grouped || !is_new || seen[code] == 0);
    seen[code] = 1;
  }
  for (std::int64_t j = list.count; j < list.count + kLanes<T>; ++j) SOFTWOOD_ASSERT(list.probability[j] == 0);
#endif
}

// Appends the chosen lanes of vectors to a list.
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

  // The pairs of a range of nodes whose value is not 0; values are [n_codes, padded samples].
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

// Calls body(std::integral_constant<int, n>) for an n from 1 to kMaxUnrolled, for which loops are unrolled, otherwise
// with 0.
inline constexpr int kMaxUnrolled = 4;
template <typename Body>
SOFTWOOD_INLINE void with_unrolled(std::int64_t n, Body&& body) {
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

// Upper bounds, exact but for a few entries, on the children of a list on each side; whether some split value is NaN.
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
    only_left_ -= (t >= broadcast<T>(edge_)) & counted;  // false for NaN, which counts on both sides
    only_right_ -= (t <= broadcast<T>(-edge_)) & counted;
    nan_ |= t != t;
  }

  // Of the `n` values that were counted.
  Bounds total(std::int64_t n) const {
    return {n - sum_integers<T>(only_right_), n - sum_integers<T>(only_left_), bits<T>(nan_) != 0};
  }

 private:
  T edge_;
  Integers<T> only_left_{}, only_right_{}, nan_{};
};

// Fills list.next, a grouped list that was allocated for `bounds`.
template <typename T, typename Act>
SOFTWOOD_NOINLINE void partition(const Act& activation, const Bounds& bounds, List<T>& list, Arena& scratch) {
  constexpr int W = kLanes<T>;
  List<T>& next = *list.next;
  const ArenaScope scope(scratch);
  const List<T>& rights = *allocate_list<T>(scratch, bounds.right, true, false);
  const List<T> from = list;  // a copy: the compiler knows that no store changes it
  Appender<T> left(next), right(rights);
  for (std::int64_t j = 0; j < from.count; j += W) {
    const Routed<T> routed = route<T>(activation, load(from.t + j), load(from.probability + j));
    const Integers<T> child = left_child(load_integers<T>(from.pair + j));
    left.append(bits<T>(routed.left != Vector<T>{}), child, routed.left);
    right.append(bits<T>(routed.right != Vector<T>{}), right_sibling(child), routed.right);
  }
  const std::int64_t n_left = left.pair - next.pair, n_right = right.pair - rights.pair;
  SOFTWOOD_ASSERT(n_left <= bounds.left && n_right <= bounds.right && bounds.left + bounds.right == next.count);
  __builtin_memcpy(next.pair + n_left, rights.pair, std::size_t(n_right) * sizeof(T));
  __builtin_memcpy(next.probability + n_left, rights.probability, std::size_t(n_right) * sizeof(T));
  list.n_left = n_left;
  next.count = n_left + n_right;
  pad_list(next);
}

// Where the last vector of a list begins; -1 if it is empty.
template <typename T>
SOFTWOOD_INLINE std::int64_t last_vector(const List<T>& list) {
  return list.count == 0 ? -1 : (list.count - 1) / kLanes<T> * kLanes<T>;
}

// Fills list.next, a list that is not grouped. Goes from the last vector to the first, because the last vector of first
// children extends past their end, where the second children are written afterwards.
template <typename T, typename Act>
SOFTWOOD_NOINLINE void branch(const Act& activation, List<T>& list) {
  List<T>& next = *list.next;
  const List<T> from = list, to = next;  // copies: the compiler knows that no store changes them
  Appender<T> second(to, from.count);
  for (std::int64_t j = last_vector(from); j >= 0; j -= kLanes<T>) {
    const Vector<T> t = load(from.t + j), probability = load(from.probability + j);
    const Vector<T> minor = minor_probability<T>(activation, t, probability);
    const Integers<T> left = left_child(load_integers<T>(from.pair + j)), right = right_sibling(left);
    store_integers<T>(to.pair + j, select_by_sign<T>(t, right, left));
    store(to.probability + j, probability - minor);
    second.append(bits<T>(minor != Vector<T>{}), select_by_sign<T>(t, left, right), minor);
  }
  SOFTWOOD_ASSERT(second.pair - to.pair <= next.count);
  next.count = second.pair - to.pair;
  pad_list(next);
}

// result[row(j)] += factor[j] * values(j) for all j; `result` is [n_rows, k], where k values fit into one vector. Sums
// are kept one vector per row: overlapping stores would delay the loads that follow.
template <typename T, typename Row, typename Values>
SOFTWOOD_INLINE void add_short_rows(std::int64_t count, const Row& row, const T* factor, const Values& values,
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
SOFTWOOD_NOINLINE void list_output(const Ensemble<T>& ensemble, const List<T>& leaves, std::int64_t n_samples,
                                   T* output, Arena& scratch) {
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
    add_short_rows(
        count, sample, probabilities, [&](std::int64_t j) { return load(leaf_weight + code_of(pairs[j]) * k, tail); },
        n_samples, k, output, scratch);
  }
}

}  // namespace softwood::SOFTWOOD_ISA

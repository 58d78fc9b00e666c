// How dL/dt of (node, sample) pairs becomes the gradients of the splits: dL/dW, dL/db, and their contribution to dL/dx.
// Everything in the backward pass that depends on the form of a split, t = <w, x> + b, is in this file; split_values.h
// is its counterpart in the forward pass.
#pragma once

#include "split_values.h"

namespace softwood::SOFTWOOD_ISA {

// Whether some sample has a value other than 0; `values` is [padded].
template <typename T>
SOFTWOOD_INLINE bool any_nonzero(const T* values, std::int64_t padded) {
  Integers<T> any{};
  for (std::int64_t i = 0; i < padded; i += kLanes<T>) any |= load(values + i) != Vector<T>{};
  return bits<T>(any) != 0;
}

template <typename T>
class SplitGradients {
 public:
  // `grad_x` is [n, stride of x], or null.
  SplitGradients(const Ensemble<T>& ensemble, const Rows<T>& x, std::int64_t padded, const Gradients<T>& gradients,
                 T* grad_x, Arena& scratch)
      : ensemble_(ensemble), x_(x), padded_(padded), gradients_(gradients), grad_x_(grad_x), scratch_(scratch) {}

  // From dL/dt [n_codes, padded] of a dense range, by matrix products.
  void add_range(const Frontier<T>& frontier, const T* grad_t) const {
    const std::int64_t p = ensemble_.n_features, n = x_.n_rows;
    const LevelRows<T> row_of(ensemble_, frontier.level);
    const auto row = [&](std::int64_t i) { return row_of(frontier.code_begin + i); };
    if (gradients_.split_weight != nullptr) {
      gemm<T>(
          frontier.n_codes, p, n, [&](std::int64_t i) { return grad_t + i * padded_; }, 1,
          Strided<T>{x_.data, x_.row_stride},
          add_to<T>([&](std::int64_t i) { return gradients_.split_weight + row(i) * p; }));
    }
    for (std::int64_t i = 0; i < frontier.n_codes; ++i) {
      if (gradients_.split_marked != nullptr) {
        gradients_.split_marked[row(i)] |= any_nonzero(grad_t + i * padded_, padded_);
      }
      if (gradients_.split_bias != nullptr) {
        Vector<T> total{};
        for (std::int64_t s = 0; s < padded_; s += kLanes<T>) total += load(grad_t + i * padded_ + s);
        gradients_.split_bias[row(i)] += sum<T>(total);
      }
    }
    if (grad_x_ == nullptr) return;
    const T** weights = scratch_.template allocate<const T*>(frontier.n_codes);
    for (std::int64_t i = 0; i < frontier.n_codes; ++i) weights[i] = ensemble_.split_weight + row(i) * p;
    gemm<T>(
        n, p, frontier.n_codes, [&](std::int64_t i) { return grad_t + i; }, padded_,
        [&](std::int64_t i) { return weights[i]; },
        add_to<T>([&](std::int64_t i) { return grad_x_ + i * x_.row_stride; }));
  }

  // From a list of a level whose `probability` holds dL/dt.
  void add_list(int level, const List<T>& list) const {
    if (T* const grad_bias = gradients_.split_bias; grad_bias != nullptr) {
      const LevelRows<T> row_of(ensemble_, level);
      for (std::int64_t j = 0; j < list.count; ++j) grad_bias[row_of(code_of(list.pair[j]))] += list.probability[j];
    }
    with_unrolled(vectors_in<T>(ensemble_.n_features), [&](auto n_vectors) {
      if constexpr (n_vectors() > 0) {
        list.grouped ? add_short_entries<n_vectors(), true>(level, list)
                     : add_short_entries<n_vectors(), false>(level, list);
      } else {
        list.grouped ? add_long_entries<true>(level, list) : add_long_entries<false>(level, list);
      }
    });
  }

 private:
  // What the loops over entries read, to be copied to locals: the compiler must assume that a store to a mark changes a
  // member.
  struct Arrays {
    std::int64_t p, stride;
    const T* features;
    const T* weights;
    T* grad_w;
    T* grad_x;
    std::uint8_t* marked;
    bool prefetch;
  };

  Arrays arrays(int level) const {
    return {ensemble_.n_features,
            x_.row_stride,
            x_.data,
            ensemble_.split_weight,
            gradients_.split_weight,
            grad_x_,
            gradients_.split_marked,
            wants_prefetch(ensemble_, level)};
  }

  // At the first entry j of a node: marks the node, prefetches for a later entry, and returns the offset of the node's
  // weights.
  template <bool kGrouped>
  static SOFTWOOD_INLINE std::int64_t start_node(const List<T>& list, std::int64_t j, const LevelRows<T>& row_of,
                                                 const Arrays& of) {
    const std::int64_t node = row_of(code_of(list.pair[j]));
    if (of.marked != nullptr) of.marked[node] = 1;
    if (!kGrouped && of.prefetch && j + kPrefetchEntries < list.count) {
      const std::int64_t ahead = std::int64_t(row_of(code_of(list.pair[j + kPrefetchEntries]))) * of.p;
      if (of.grad_w != nullptr) prefetch_row(of.grad_w + ahead, of.p);
      if (of.grad_x != nullptr) prefetch_row(of.weights + ahead, of.p);
    }
    return node * of.p;
  }

  // Rows of at most kMaxUnrolled vectors: the weights of a node and the sums of its gradient stay in registers while
  // its entries are visited.
  template <int kVectors, bool kGrouped>
  SOFTWOOD_NOINLINE void add_short_entries(int level, const List<T>& given) const {
    constexpr int W = kLanes<T>;
    const List<T> list = given;  // a copy: the compiler knows that no store changes it
    const Arrays of = arrays(level);
    const Tail<T> tail = tail_of<T>(of.p);
    const LevelRows<T> row_of(ensemble_, level);
    for (std::int64_t j = 0; j < list.count;) {
      const Integer<T> code = code_of(list.pair[j]);
      const std::int64_t offset = start_node<kGrouped>(list, j, row_of, of);
      const T* weights = of.weights + offset;
      Vector<T> w[kVectors], sums[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        w[v] = v < kVectors - 1 ? load(weights + v * W) : load(weights + v * W, tail);
        sums[v] = Vector<T>{};
      }
      do {
        const Vector<T> factor = broadcast<T>(list.probability[j]);
        const std::int64_t at = sample_of(list.pair[j]) * of.stride;
        const T* x = of.features + at;
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sums[v] += factor * load(x + v * W);
        if (of.grad_x != nullptr) {
          T* to = of.grad_x + at;
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; ++v) store(to + v * W, load(to + v * W) + factor * w[v]);
        }
      } while (++j < list.count && kGrouped && code_of(list.pair[j]) == code);
      if (of.grad_w == nullptr) continue;
      T* to = of.grad_w + offset;
#pragma GCC unroll 4
      for (int v = 0; v < kVectors - 1; ++v) store(to + v * W, load(to + v * W) + sums[v]);
      constexpr int last = (kVectors - 1) * W;
      store(to + last, load(to + last, tail) + sums[kVectors - 1], tail);
    }
  }

  // Longer rows: the entries of a node are visited once for every two vectors of its gradient.
  template <bool kGrouped>
  SOFTWOOD_NOINLINE void add_long_entries(int level, const List<T>& given) const {
    const List<T> list = given;  // as above
    const Arrays of = arrays(level);
    const LevelRows<T> row_of(ensemble_, level);
    for (std::int64_t j = 0; j < list.count;) {
      const Integer<T> code = code_of(list.pair[j]);
      const std::int64_t offset = start_node<kGrouped>(list, j, row_of, of), begin = j++;
      while (kGrouped && j < list.count && code_of(list.pair[j]) == code) ++j;
      if (of.grad_w != nullptr) {
        add_rows(of.p, of.grad_w + offset, list.probability + begin, j - begin,
                 [&](std::int64_t i) { return of.features + sample_of(list.pair[begin + i]) * of.stride; });
      }
      if (of.grad_x == nullptr) continue;
      for (std::int64_t i = begin; i < j; ++i) {
        add_rows(of.p, of.grad_x + sample_of(list.pair[i]) * of.stride, list.probability + i, 1,
                 [&](std::int64_t) { return of.weights + offset; });
      }
    }
  }

  // to[0..p) += sum over j of factor[j] * row(j)[0..p)
  template <typename Row>
  static SOFTWOOD_INLINE void add_rows(std::int64_t p, T* to, const T* factor, std::int64_t n_rows, const Row& row) {
    constexpr int W = kLanes<T>;
    std::int64_t f = 0;
    for (; f + 2 * W <= p; f += 2 * W) {
      Vector<T> a = load(to + f), b = load(to + f + W);
      for (std::int64_t j = 0; j < n_rows; ++j) {
        const T* from = row(j) + f;
        a += factor[j] * load(from);
        b += factor[j] * load(from + W);
      }
      store(to + f, a);
      store(to + f + W, b);
    }
    if (f + W <= p) {
      Vector<T> a = load(to + f);
      for (std::int64_t j = 0; j < n_rows; ++j) a += factor[j] * load(row(j) + f);
      store(to + f, a);
      f += W;
    }
    if (f < p) {
      const Tail<T> tail(p - f);
      Vector<T> a = load(to + f, tail);
      for (std::int64_t j = 0; j < n_rows; ++j) a += factor[j] * load(row(j) + f, tail);
      store(to + f, a, tail);
    }
  }

  const Ensemble<T>& ensemble_;
  const Rows<T>& x_;
  const std::int64_t padded_;
  const Gradients<T>& gradients_;
  T* const grad_x_;
  Arena& scratch_;
};

}  // namespace softwood::SOFTWOOD_ISA

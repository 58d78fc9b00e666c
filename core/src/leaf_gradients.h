// The backward pass at the leaves, for dense ranges and for lists: their expectations <dL/dT, o_l>, and dL/do.
#pragma once

#include "gemm.h"
#include "lists.h"
#include "split_gradients.h"

namespace softwood::SOFTWOOD_ISA {

// Entries per leaf, on average, from which on the gradients of the leaves of a list are summed as vectors first.
inline constexpr std::int64_t kSummedLeafEntries = 4;

template <typename T>
class LeafGradients {
 public:
  // The output gradient of sample i is at grad_output + i * grad_stride.
  LeafGradients(const Ensemble<T>& ensemble, std::int64_t n_samples, std::int64_t padded, const T* grad_output,
                std::int64_t grad_stride, const Gradients<T>& gradients, Arena& scratch)
      : ensemble_(ensemble),
        n_(n_samples),
        padded_(padded),
        grad_output_(grad_output),
        grad_stride_(grad_stride),
        gradients_(gradients),
        scratch_(scratch) {
    const std::int64_t k = ensemble_.n_outputs;
    grad_columns_ = scratch_.template allocate<T>(k * padded_);
    for (std::int64_t j = 0; j < k; ++j) {
      for (std::int64_t i = 0; i < padded_; ++i) {
        grad_columns_[j * padded_ + i] = i < n_ ? grad_output_[i * grad_stride_ + j] : T(0);
      }
    }
    if (k > kLanes<T>) return;
    const Tail<T> tail(k);
    grad_rows_ = scratch_.template allocate<T>(n_ * kLanes<T>);
    for (std::int64_t i = 0; i < n_; ++i) {
      store(grad_rows_ + i * kLanes<T>, load(grad_output_ + i * grad_stride_, tail));
    }
  }

  // Of a dense range of leaves: writes the expectations and adds the gradients, both from probabilities [n_codes,
  // padded].
  void ascend_range(const Frontier<T>& frontier, const T* probability, T* expected) const {
    const std::int64_t k = ensemble_.n_outputs;
    const T* leaves = ensemble_.leaf_weight + frontier.code_begin * k;
    gemm<T>(
        frontier.n_codes, padded_, k, [&](std::int64_t i) { return leaves + i * k; }, 1,
        Strided<T>{grad_columns_, padded_}, write_to<T>([&](std::int64_t i) { return expected + i * padded_; }));
    if (gradients_.leaf_weight == nullptr) return;
    T* grad_leaves = gradients_.leaf_weight + frontier.code_begin * k;
    if (2 * k <= kLanes<T>) {
      add_few_outputs(frontier.n_codes, probability, grad_leaves);
    } else {
      gemm<T>(
          frontier.n_codes, k, n_, [&](std::int64_t i) { return probability + i * padded_; }, 1,
          Strided<T>{grad_output_, grad_stride_}, add_to<T>([&](std::int64_t i) { return grad_leaves + i * k; }));
    }
    for (std::int64_t i = 0; i < frontier.n_codes; ++i) {
      gradients_.leaf_marked[frontier.code_begin + i] |= any_nonzero(probability + i * padded_, padded_);
    }
  }

  // Expectations of a list of leaves; `expected` has room for one more vector.
  void list_expectations(const List<T>& list, T* expected) const {
    constexpr int W = kLanes<T>, G = kPart<T>;
    const std::int64_t k = ensemble_.n_outputs, count = list.count;
    const Integer<T>* const pairs = list.pair;
    const T* const leaf_weight = ensemble_.leaf_weight;
    if (k == 1 || grad_rows_ == nullptr) {
      for (std::int64_t j = 0; j < count; ++j) {
        const T* leaf = leaf_weight + code_of(pairs[j]) * k;
        const T* grad = grad_output_ + sample_of(pairs[j]) * grad_stride_;
        T total = 0;
        for (std::int64_t c = 0; c < k; ++c) total += leaf[c] * grad[c];
        expected[j] = total;
      }
      return;
    }
    const Tail<T> tail(k);
    const T* const grad_rows = grad_rows_;
    for (std::int64_t j = 0; j < count; j += W) {
      Vector<T> groups[W / G];
#pragma GCC unroll 4
      for (int g = 0; g < W / G; ++g) {
        Vector<T> products[G];
#pragma GCC unroll 4
        for (int i = 0; i < G; ++i) {
          const Integer<T> pair = pairs[j + g * G + i];
          products[i] =
              load(leaf_weight + code_of(pair) * k, tail) * load(grad_rows + std::int64_t(sample_of(pair)) * W);
        }
        groups[g] = sum_parts<T>(products);
      }
      store(expected + j, add_parts<T>(groups));
    }
  }

  // Adds the gradients of the leaves of a list.
  void add_list(const List<T>& list) const {
    constexpr int W = kLanes<T>;
    T* const grad_leaves = gradients_.leaf_weight;
    if (grad_leaves == nullptr) return;
    const std::int64_t k = ensemble_.n_outputs, count = list.count, stride = grad_stride_;
    const std::int64_t n_leaves = ensemble_.n_trees * ensemble_.n_leaves();
    const Integer<T>* const pairs = list.pair;
    const T* const probability = list.probability;
    const T* const grad_output = grad_output_;
    const T* const grad_rows = grad_rows_;
    std::uint8_t* const marked = gradients_.leaf_marked;
    const auto code = [&](std::int64_t j) { return code_of(pairs[j]); };
    const auto grad = [&](std::int64_t j) { return load(grad_rows + std::int64_t(sample_of(pairs[j])) * W); };
    if (grad_rows != nullptr && list.grouped) {
      for (std::int64_t j = 0; j < count;) {
        const Integer<T> leaf = code(j);
        Vector<T> even{}, odd{};
        for (; j + 1 < count && code(j + 1) == leaf; j += 2) {
          even += probability[j] * grad(j);
          odd += probability[j + 1] * grad(j + 1);
        }
        if (j < count && code(j) == leaf) {
          even += probability[j] * grad(j);
          ++j;
        }
        const Vector<T> sums = even + odd;
        for (std::int64_t c = 0; c < k; ++c) grad_leaves[leaf * k + c] += sums[c];
        marked[leaf] = 1;
      }
      return;
    }
    for (std::int64_t j = 0; j < count; ++j) marked[code(j)] = 1;
    if (grad_rows != nullptr && count >= kSummedLeafEntries * n_leaves) {
      return add_short_rows(count, code, probability, grad, n_leaves, k, grad_leaves, scratch_);
    }
    with_unrolled(k, [&](auto unrolled) {
      const std::int64_t n_outputs = unrolled() != 0 ? unrolled() : k;
      for (std::int64_t j = 0; j < count; ++j) {
        const T* from = grad_output + sample_of(pairs[j]) * stride;
        T* to = grad_leaves + code(j) * n_outputs;
        for (std::int64_t c = 0; c < n_outputs; ++c) to[c] += probability[j] * from[c];
      }
    });
  }

 private:
  // dL/do of a range of leaves if the outputs would fill only a part of a vector: the lanes are samples.
  void add_few_outputs(std::int64_t n_codes, const T* probability, T* grad_leaves) const {
    constexpr int W = kLanes<T>, G = kPart<T>;
    const std::int64_t k = ensemble_.n_outputs;
    for (std::int64_t code = 0; code < n_codes; code += G) {
      const T* rows[G];
#pragma GCC unroll 4
      for (int g = 0; g < G; ++g) rows[g] = probability + (code + g < n_codes ? code + g : code) * padded_;
      for (std::int64_t c = 0; c < k; ++c) {
        const T* column = grad_columns_ + c * padded_;
        Vector<T> sums[G] = {};
        for (std::int64_t i = 0; i < padded_; i += W) {
          const Vector<T> factor = load(column + i);
#pragma GCC unroll 4
          for (int g = 0; g < G; ++g) sums[g] += factor * load(rows[g] + i);
        }
        const Vector<T> parts = sum_parts<T>(sums);
        for (int g = 0; g < G && code + g < n_codes; ++g) {
          T total = 0;
          for (int part = g; part < W; part += G) total += parts[part];
          grad_leaves[(code + g) * k + c] += total;
        }
      }
    }
  }

  const Ensemble<T>& ensemble_;
  const std::int64_t n_, padded_;
  const T* grad_output_;
  const std::int64_t grad_stride_;
  const Gradients<T>& gradients_;
  Arena& scratch_;
  T* grad_columns_ = nullptr;  // [k, padded]
  T* grad_rows_ = nullptr;     // [n, lanes], if the outputs fit into one vector
};

}  // namespace softwood::SOFTWOOD_ISA

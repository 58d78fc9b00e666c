// Algorithm 2 of the paper (conditional backward pass) for one unit, from the tape of its forward pass.
//
// Deviates from the paper in being free of divisions. With e_c the expected <dL/dT, o_l> over the leaves l below c,
// given that c is reached,
//
//     dL/dt_i = S'(t_i) P(x -> i) (e_left - e_right),    e_i = S(t_i) e_left + (1 - S(t_i)) e_right,
//
// built bottom-up over the frontiers and lists that the forward pass left. Only fractional nodes have S' > 0; where
// they are many their weight gradients are a matrix product, else a list of (node, sample, dL/dt).
#pragma once

#include "forward.h"

namespace softwood::SOFTWOOD_ISA {

// The weight gradients of a dense range are a matrix product if at least this share of its pairs is fractional. The
// choice of the forward pass, by reached pairs, would not do: in a trained tree most reached nodes are not fractional.
inline constexpr double kDenseFractionalShare = 0.25;

// Entries of a leaf, on average, from which on its gradient is summed up apart.
inline constexpr std::int64_t kLeafEntries = 4;

template <typename T>
class Backward {
 public:
  Backward(const Unit<T>& unit, const T* grad_output, std::int64_t grad_stride, const Gradients<T>& gradients,
           Arena& scratch)
      : x_(unit.x),
        ensemble_(unit.ensemble),
        grad_output_(grad_output),
        grad_stride_(grad_stride),
        gradients_(gradients),
        scratch_(scratch),
        n_(unit.x.n_rows),
        padded_((n_ + kTileRows - 1) / kTileRows * kTileRows) {}

  void run(const Frontier<T>* root) {
    const std::int64_t p = ensemble_.n_features, k = ensemble_.n_outputs;
    if (gradients_.x != nullptr) {
      grad_x_ = scratch_.allocate<T>(n_ * x_.row_stride);
      for (std::int64_t i = 0; i < n_ * x_.row_stride; ++i) grad_x_[i] = 0;
    }
    grad_columns_ = scratch_.allocate<T>(k * padded_);
    for (std::int64_t j = 0; j < k; ++j) {
      for (std::int64_t i = 0; i < padded_; ++i) {
        grad_columns_[j * padded_ + i] = i < n_ ? grad_output_[i * grad_stride_ + j] : T(0);
      }
    }
    if (k <= kLanes<T>) {
      const Tail<T> tail(k);
      grad_rows_ = scratch_.allocate<T>(n_ * kLanes<T>);
      for (std::int64_t i = 0; i < n_; ++i)
        store(grad_rows_ + i * kLanes<T>, load(grad_output_ + i * grad_stride_, tail));
    }
    T* certain = scratch_.allocate<T>(ensemble_.n_trees * padded_);
    for (std::int64_t tree = 0; tree < ensemble_.n_trees; ++tree) {
      for (std::int64_t i = 0; i < padded_; ++i) certain[tree * padded_ + i] = i < n_ ? T(1) : T(0);
    }
    ascend(*root, certain, scratch_.allocate<T>(ensemble_.n_trees * padded_));
    if (gradients_.x != nullptr) {
      for (std::int64_t i = 0; i < n_; ++i) {
        __builtin_memcpy(gradients_.x + i * p, grad_x_ + i * x_.row_stride, std::size_t(p) * sizeof(T));
      }
    }
  }

 private:
  static constexpr int kTileRows = kTileVectors * kLanes<T>;

  // Adds the gradients of all that lies below a frontier and writes its expectations e, [n_codes, padded] as
  // `probability`.
  void ascend(const Frontier<T>& frontier, const T* probability, T* expected) {
    const Arena::Mark mark = scratch_.mark();
    switch (frontier.fate) {
      case Frontier<T>::Fate::leaves:
        ascend_leaves(frontier, probability, expected);
        break;
      case Frontier<T>::Fate::listed:
        ascend_listed(frontier, probability, expected);
        break;
      case Frontier<T>::Fate::expanded:
        ascend_expanded(frontier, probability, expected);
        break;
      case Frontier<T>::Fate::halved: {
        const std::int64_t offset = frontier.first->n_codes * padded_;
        ascend(*frontier.first, probability, expected);
        ascend(*frontier.second, probability + offset, expected + offset);
      }
    }
    scratch_.release(mark);
  }

  void ascend_leaves(const Frontier<T>& frontier, const T* probability, T* expected) {
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
      gradients_.leaf_marked[frontier.code_begin + i] |= any_reached(probability + i * padded_);
    }
  }

  // dL/do of a range of leaves where the outputs would fill only a part of a vector: samples lie along the vectors.
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

  bool any_reached(const T* probability) const {
    Integers<T> any{};
    for (std::int64_t i = 0; i < padded_; i += kLanes<T>) any |= load(probability + i) != Vector<T>{};
    return bits<T>(any) != 0;
  }

  void ascend_expanded(const Frontier<T>& frontier, const T* probability, T* expected) {
    const std::int64_t size = frontier.n_codes * padded_;
    T* below = scratch_.allocate<T>(2 * size);
    T* expected_below = scratch_.allocate<T>(2 * size);
    T* grad_t = scratch_.allocate<T>(size);
    with_activation(ensemble_, [&](auto activation) {
      for (std::int64_t code = 0; code < frontier.n_codes; ++code) {
        T* left = below + 2 * code * padded_;
        for (std::int64_t i = 0; i < padded_; i += kLanes<T>) {
          const std::int64_t at = code * padded_ + i;
          const Routed<T> routed = route<T>(activation, load(frontier.t + at), load(probability + at));
          store(left + i, routed.left);
          store(left + padded_ + i, routed.right);
        }
      }
    });
    ascend(*frontier.first, below, expected_below);

    Integers<T> n_fractional{};
    with_activation(ensemble_, [&](auto activation) {
      for (std::int64_t code = 0; code < frontier.n_codes; ++code) {
        const T* left = expected_below + 2 * code * padded_;
        for (std::int64_t i = 0; i < padded_; i += kLanes<T>) {
          const std::int64_t at = code * padded_ + i;
          const Combined<T> combined = combine<T>(activation, load(frontier.t + at), load(probability + at),
                                                  load(left + i), load(left + padded_ + i));
          store(expected + at, combined.expected);
          store(grad_t + at, combined.grad_t);
          n_fractional -= combined.grad_t != Vector<T>{};
        }
      }
    });
    const std::int64_t total = sum_integers<T>(n_fractional);
    if (double(total) >= kDenseFractionalShare * double(frontier.n_codes * n_)) {
      add_dense(frontier, grad_t);
    } else if (total > 0) {
      List<T>* list = allocate_list<T>(scratch_, total, true, false);
      Appender<T>(*list).append_range(frontier.code_begin, frontier.n_codes, grad_t, padded_);
      add_list(frontier.level, *list);
    }
  }

  // dL/dW and dL/db of a range of nodes, and their part of dL/dx, from dL/dt [n_codes, padded].
  void add_dense(const Frontier<T>& frontier, const T* grad_t) {
    const std::int64_t p = ensemble_.n_features;
    const LevelRows<T> row_of(ensemble_, frontier.level);
    const auto row = [&](std::int64_t i) { return row_of(frontier.code_begin + i); };
    if (gradients_.split_weight != nullptr) {
      gemm<T>(
          frontier.n_codes, p, n_, [&](std::int64_t i) { return grad_t + i * padded_; }, 1,
          Strided<T>{x_.data, x_.row_stride},
          add_to<T>([&](std::int64_t i) { return gradients_.split_weight + row(i) * p; }));
    }
    for (std::int64_t i = 0; i < frontier.n_codes; ++i) {
      if (gradients_.split_marked != nullptr) gradients_.split_marked[row(i)] |= any_reached(grad_t + i * padded_);
      if (gradients_.split_bias != nullptr) {
        Vector<T> total{};
        for (std::int64_t s = 0; s < padded_; s += kLanes<T>) total += load(grad_t + i * padded_ + s);
        gradients_.split_bias[row(i)] += sum<T>(total);
      }
    }
    if (grad_x_ == nullptr) return;
    const T** weights = scratch_.allocate<const T*>(frontier.n_codes);
    for (std::int64_t i = 0; i < frontier.n_codes; ++i) weights[i] = ensemble_.split_weight + row(i) * p;
    gemm<T>(
        n_, p, frontier.n_codes, [&](std::int64_t i) { return grad_t + i; }, padded_,
        [&](std::int64_t i) { return weights[i]; },
        add_to<T>([&](std::int64_t i) { return grad_x_ + i * x_.row_stride; }));
  }

  void ascend_listed(const Frontier<T>& frontier, const T* probability, T* expected) {
    const T* from = ascend_list(frontier.level, *frontier.list);
    // The list holds the reached pairs in the order of the range.
    for (std::int64_t i = 0; i < frontier.n_codes * padded_; i += kLanes<T>) {
      const Integers<T> reached = load(probability + i) != Vector<T>{};
      const std::uint32_t set = bits<T>(reached);
      store(expected + i, expand<T>(load(from), set, reached));
      from += count_bits(set);
    }
  }

  // Adds the gradients below a list of some level; returns its expectations, which have room for one vector more.
  const T* ascend_list(int level, const List<T>& list) {
    T* expected = scratch_.allocate<T>(list.count + 2 * kLanes<T>);
    if (level == ensemble_.depth) {
      leaf_expectations(list, expected);
      add_leaves(list);
      return expected;
    }
    const T* below = ascend_list(level + 1, *list.next);
    const Arena::Mark mark = scratch_.mark();
    const std::int64_t n_rest = list.next->count - (list.next->grouped ? list.n_left : list.count);  // or fewer
    List<T>* fractional = allocate_list<T>(scratch_, n_rest, list.grouped, false);
    with_activation(ensemble_, [&](auto activation) {
      if (list.next->grouped)
        combine_partition(activation, list, below, expected, *fractional);
      else
        combine_branches(activation, list, below, expected, *fractional);
    });
    add_list(level, *fractional);
    scratch_.release(mark);
    return expected;
  }

  // The step up from a list made by `partition`: expectations, and the entries with dL/dt != 0.
  template <typename Act>
  void combine_partition(const Act& activation, const List<T>& list, const T* below, T* expected, List<T>& fractional) {
    const T* from_left = below;
    const T* from_right = below + list.n_left;
    Appender<T> to(fractional);
    for (std::int64_t j = 0; j < list.count; j += kLanes<T>) {
      const Vector<T> t = load(list.t + j), probability = load(list.probability + j);
      const Routed<T> routed = route<T>(activation, t, probability);
      const Integers<T> left = routed.left != Vector<T>{}, right = routed.right != Vector<T>{};
      const std::uint32_t left_set = bits<T>(left), right_set = bits<T>(right);
      const Vector<T> expected_left = expand<T>(load(from_left), left_set, left);
      const Vector<T> expected_right = expand<T>(load(from_right), right_set, right);
      from_left += count_bits(left_set);
      from_right += count_bits(right_set);
      const Combined<T> combined = combine<T>(activation, t, probability, expected_left, expected_right);
      store(expected + j, combined.expected);
      to.append(left_set & right_set, load_integers<T>(list.pair + j), combined.grad_t);
    }
    fractional.count = to.pair - fractional.pair;
  }

  // The step up from a list made by `branch`, in the same order.
  template <typename Act>
  void combine_branches(const Act& activation, const List<T>& list, const T* below, T* expected, List<T>& fractional) {
    const T* of_second = below + list.count;
    Appender<T> to(fractional);
    for (std::int64_t j = last_vector(list); j >= 0; j -= kLanes<T>) {
      const Vector<T> t = load(list.t + j), probability = load(list.probability + j);
      const Integers<T> has_second = minor_probability<T>(activation, t, probability) != Vector<T>{};
      const std::uint32_t set = bits<T>(has_second);
      const Vector<T> first = load(below + j), second = expand<T>(load(of_second), set, has_second);
      of_second += count_bits(set);
      const Combined<T> combined = combine<T>(activation, t, probability, select_by_sign<T>(t, second, first),
                                              select_by_sign<T>(t, first, second));
      store(expected + j, combined.expected);
      to.append(set, load_integers<T>(list.pair + j), combined.grad_t);
    }
    fractional.count = to.pair - fractional.pair;
  }

  // Expectations of a list at the leaves, <dL/dT, o_l>; they have room for one vector more.
  void leaf_expectations(const List<T>& list, T* expected) const {
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

  // The leaves' gradients from a list at the leaves.
  void add_leaves(const List<T>& list) const {
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
    if (grad_rows != nullptr && count >= kLeafEntries * n_leaves) {
      return add_rows_apart(count, code, probability, grad, n_leaves, k, grad_leaves, scratch_);
    }
    with_small(k, [&](auto few) {
      const std::int64_t n_outputs = few() != 0 ? few() : k;
      for (std::int64_t j = 0; j < count; ++j) {
        const T* from = grad_output + sample_of(pairs[j]) * stride;
        T* to = grad_leaves + code(j) * n_outputs;
        for (std::int64_t c = 0; c < n_outputs; ++c) to[c] += probability[j] * from[c];
      }
    });
  }

  // Gradients from a list whose `probability` holds dL/dt.
  void add_list(int level, const List<T>& list) {
    if (T* const grad_bias = gradients_.split_bias; grad_bias != nullptr) {
      const LevelRows<T> row_of(ensemble_, level);
      for (std::int64_t j = 0; j < list.count; ++j) grad_bias[row_of(code_of(list.pair[j]))] += list.probability[j];
    }
    with_small(vectors_in<T>(ensemble_.n_features), [&](auto few) {
      if (list.grouped)
        add_entries<few(), true>(level, list);
      else
        add_entries<few(), false>(level, list);
    });
  }

  // Rows have kVectors vectors, or any number if that is 0.
  template <int kVectors, bool kGrouped>
  SOFTWOOD_APART void add_entries(int level, const List<T>& list) {
    constexpr int W = kLanes<T>;
    const std::int64_t p = ensemble_.n_features, count = list.count, stride = x_.row_stride;
    const Tail<T> tail = tail_of<T>(p);
    const LevelRows<T> row_of(ensemble_, level);
    const Integer<T>* const pairs = list.pair;
    const T* const grad_t = list.probability;
    const T* const split_weight = ensemble_.split_weight;
    const T* const features = x_.data;
    T* const grad_w = gradients_.split_weight;
    T* const grad_x = grad_x_;
    std::uint8_t* const marked = gradients_.split_marked;
    const bool prefetch = !kGrouped && wants_prefetch(ensemble_, level);
    for (std::int64_t j = 0; j < count;) {
      const Integer<T> code = code_of(pairs[j]);
      const std::int64_t node = row_of(code), offset = node * p;
      const T* weights = split_weight + offset;
      if (marked != nullptr) marked[node] = 1;
      if (prefetch && j + kPrefetchEntries < count) {
        const std::int64_t ahead = std::int64_t(row_of(code_of(pairs[j + kPrefetchEntries]))) * p;
        if (grad_w != nullptr) prefetch_row(grad_w + ahead, p);
        if (grad_x != nullptr) prefetch_row(split_weight + ahead, p);
      }
      if constexpr (kVectors == 0) {
        const std::int64_t begin = j++;
        while (kGrouped && j < count && code_of(pairs[j]) == code) ++j;
        if (grad_w != nullptr) {
          add_rows(grad_w + offset, grad_t + begin, j - begin,
                   [&](std::int64_t i) { return features + sample_of(pairs[begin + i]) * stride; });
        }
        if (grad_x == nullptr) continue;
        for (std::int64_t i = begin; i < j; ++i) {
          add_rows(grad_x + sample_of(pairs[i]) * stride, grad_t + i, 1, [&](std::int64_t) { return weights; });
        }
      } else {
        Vector<T> w[kVectors], sums[kVectors];
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          w[v] = v < kVectors - 1 ? load(weights + v * W) : load(weights + v * W, tail);
          sums[v] = Vector<T>{};
        }
        do {
          const Vector<T> factor = broadcast<T>(grad_t[j]);
          const std::int64_t at = sample_of(pairs[j]) * stride;
          const T* x = features + at;
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; ++v) sums[v] += factor * load(x + v * W);
          if (grad_x != nullptr) {
            T* to = grad_x + at;
#pragma GCC unroll 4
            for (int v = 0; v < kVectors; ++v) store(to + v * W, load(to + v * W) + factor * w[v]);
          }
        } while (++j < count && kGrouped && code_of(pairs[j]) == code);
        if (grad_w == nullptr) continue;
        T* to = grad_w + offset;
#pragma GCC unroll 4
        for (int v = 0; v < kVectors - 1; ++v) store(to + v * W, load(to + v * W) + sums[v]);
        constexpr int last = (kVectors - 1) * W;
        store(to + last, load(to + last, tail) + sums[kVectors - 1], tail);
      }
    }
  }

  // to[0..p) += sum over j of factor[j] * row(j)[0..p)
  template <typename Row>
  SOFTWOOD_INLINE void add_rows(T* to, const T* factor, std::int64_t n_rows, const Row& row) const {
    constexpr int W = kLanes<T>;
    const std::int64_t p = ensemble_.n_features;
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

  const Rows<T>& x_;
  const Ensemble<T>& ensemble_;
  const T* grad_output_;
  const std::int64_t grad_stride_;
  const Gradients<T>& gradients_;
  Arena& scratch_;
  const std::int64_t n_, padded_;
  T* grad_x_ = nullptr;        // [n, features padded as those of x]
  T* grad_columns_ = nullptr;  // [k, padded]
  T* grad_rows_ = nullptr;     // [n, lanes], if outputs fit into one vector
};

}  // namespace softwood::SOFTWOOD_ISA

// Algorithm 2 of the paper (conditional backward pass) for one unit, from the tape of its forward pass.
//
// Unlike the paper's, it needs no division. With e_c the expected <dL/dT, o_l> over the leaves l below c, given that c
// is reached,
//
//     dL/dt_i = S'(t_i) P(x -> i) (e_left - e_right),    e_i = S(t_i) e_left + (1 - S(t_i)) e_right,
//
// computed bottom-up over the frontiers and lists of the forward pass. Only fractional nodes have S' > 0; if there are
// many of them, their weight gradients are a matrix product, otherwise a list of (node, sample, dL/dt).
//
// The tape holds split values and probabilities, not the positions of children: this pass repeats the routing and
// advances through the level below exactly as the forward pass did.
#pragma once

#include "forward.h"
#include "leaf_gradients.h"
#include "split_gradients.h"

namespace softwood::SOFTWOOD_ISA {

// The weight gradients of a dense range are a matrix product if at least this share of its pairs is fractional. The
// criterion of the forward pass, the share of reached pairs, would not do: in a trained tree few of the reached nodes
// are fractional.
inline constexpr double kDenseFractionalShare = 0.25;

template <typename T>
class Backward {
 public:
  Backward(const Unit<T>& unit, const T* grad_output, std::int64_t grad_stride, const Gradients<T>& gradients,
           Arena& scratch)
      : x_(unit.x),
        ensemble_(unit.ensemble),
        gradients_(gradients),
        scratch_(scratch),
        n_(unit.x.n_rows),
        padded_((n_ + kPanelRows<T> - 1) / kPanelRows<T> * kPanelRows<T>),
        grad_x_(gradients.x == nullptr ? nullptr : scratch.allocate<T>(n_ * x_.row_stride)),
        split_gradients_(ensemble_, x_, padded_, gradients, grad_x_, scratch),
        leaf_gradients_(ensemble_, n_, padded_, grad_output, grad_stride, gradients, scratch) {}

  void run(const Frontier<T>* root) {
    const std::int64_t p = ensemble_.n_features;
    if (grad_x_ != nullptr) {
      for (std::int64_t i = 0; i < n_ * x_.row_stride; ++i) grad_x_[i] = 0;
    }
    const T* const probability = root_probabilities<T>(ensemble_.n_trees, n_, padded_, scratch_);
    ascend(*root, probability, scratch_.allocate<T>(ensemble_.n_trees * padded_));
    if (grad_x_ == nullptr) return;
    for (std::int64_t i = 0; i < n_; ++i) {
      __builtin_memcpy(gradients_.x + i * p, grad_x_ + i * x_.row_stride, std::size_t(p) * sizeof(T));
    }
  }

 private:
  // Adds the gradients of everything below a frontier and writes its expectations e; both arrays are [n_codes, padded].
  void ascend(const Frontier<T>& frontier, const T* probability, T* expected) {
    const ArenaScope scope(scratch_);
    switch (frontier.fate) {
      case Frontier<T>::Fate::leaves:
        leaf_gradients_.ascend_range(frontier, probability, expected);
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
      split_gradients_.add_range(frontier, grad_t);
    } else if (total > 0) {
      List<T>* list = allocate_list<T>(scratch_, total, true, false);
      Appender<T> to(*list);
      to.append_range(frontier.code_begin, frontier.n_codes, grad_t, padded_);
      SOFTWOOD_ASSERT(to.pair - list->pair == total);
      split_gradients_.add_list(frontier.level, *list);
    }
  }

  void ascend_listed(const Frontier<T>& frontier, const T* probability, T* expected) {
    const T* const expectations = ascend_list(frontier.level, *frontier.list);
    const T* from = expectations;  // the list holds the reached pairs in the order of the range
    for (std::int64_t i = 0; i < frontier.n_codes * padded_; i += kLanes<T>) {
      const Integers<T> reached = load(probability + i) != Vector<T>{};
      const std::uint32_t set = bits<T>(reached);
      store(expected + i, expand<T>(load(from), set, reached));
      from += count_bits(set);
    }
    SOFTWOOD_ASSERT(from - expectations == frontier.list->count);
    check_pairs(frontier, probability);
  }

  // Debug builds: the recomputed probabilities are not 0 for exactly the pairs of the list.
  void check_pairs([[maybe_unused]] const Frontier<T>& frontier, [[maybe_unused]] const T* probability) const {
#if defined(SOFTWOOD_DEBUG)
    const Integer<T>* pair = frontier.list->pair;
    for (std::int64_t i = 0; i < frontier.n_codes * padded_; ++i) {
      if (probability[i] == 0) continue;
      SOFTWOOD_ASSERT(code_of(*pair) == frontier.code_begin + i / padded_ && sample_of(*pair) == i % padded_);
      ++pair;
    }
#endif
  }

  // Adds the gradients of everything below the list of a level; returns its expectations, padded by one vector.
  const T* ascend_list(int level, const List<T>& list) {
    T* expected = scratch_.allocate<T>(list.count + 2 * kLanes<T>);
    if (level == ensemble_.depth) {
      leaf_gradients_.list_expectations(list, expected);
      leaf_gradients_.add_list(list);
      return expected;
    }
    const T* below = ascend_list(level + 1, *list.next);
    const ArenaScope scope(scratch_);
    const std::int64_t max_fractional = list.next->count - (list.next->grouped ? list.n_left : list.count);
    List<T>* fractional = allocate_list<T>(scratch_, max_fractional, list.grouped, false);
    with_activation(ensemble_, [&](auto activation) {
      if (list.next->grouped)
        combine_partition(activation, list, below, expected, *fractional);
      else
        combine_branches(activation, list, below, expected, *fractional);
    });
    SOFTWOOD_ASSERT(fractional->count <= max_fractional);
    split_gradients_.add_list(level, *fractional);
    return expected;
  }

  // One level up, if `partition` made the level below: expectations, and the fractional entries with dL/dt.
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
    SOFTWOOD_ASSERT(from_left == below + list.n_left && from_right == below + list.next->count);
    fractional.count = to.pair - fractional.pair;
  }

  // One level up, if `branch` made the level below; in the same order.
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
    SOFTWOOD_ASSERT(of_second == below + list.next->count);
    fractional.count = to.pair - fractional.pair;
  }

  const Rows<T>& x_;
  const Ensemble<T>& ensemble_;
  const Gradients<T>& gradients_;
  Arena& scratch_;
  const std::int64_t n_, padded_;
  T* const grad_x_;  // [n, features padded as those of x]
  const SplitGradients<T> split_gradients_;
  const LeafGradients<T> leaf_gradients_;
};

}  // namespace softwood::SOFTWOOD_ISA

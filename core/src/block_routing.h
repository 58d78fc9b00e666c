// From the 15 split values of a block of a lookup tree (see softwood/lookup.h) to the probabilities of its 16 leaves.
// All names are local to the including file, so that files with different compiler flags cannot get each other's code.
#pragma once

#include "activation.h"
#include "sixteen.h"

namespace softwood::SOFTWOOD_ISA {
namespace {

// Probabilities of a block's splits to go left and right, in lanes 0 to 14.
struct Sides {
  Sixteen left, right;
};

template <typename Act>
SOFTWOOD_INLINE Sides sides(const Act& activation, const Sixteen& t) {
  using Floats = Vector<float>;
  const Sixteen minor =
      map([&](Floats x) __attribute__((always_inline)) { return activation.minor(absolute<float>(x)); }, t);
  const Sixteen left =
      map([](Floats x, Floats less) __attribute__((always_inline)) { return select_by_sign<float>(x, less, 1 - less); },
          t, minor);
  const Sixteen right =
      map([](Floats x, Floats less) __attribute__((always_inline)) { return select_by_sign<float>(x, 1 - less, less); },
          t, minor);
  return {left, right};
}

// A shuffle of (left, right): for each leaf, the probability of the step towards it from its ancestor of one level.
template <int kLevel>
struct StepFrom {
  static constexpr int source(int leaf) {
    const int node = (1 << kLevel) - 1 + (leaf >> (4 - kLevel)), goes_right = leaf >> (3 - kLevel) & 1;
    return node + 16 * goes_right;
  }
};

// For each leaf, the probabilities of the four steps on the way to it, from the root down.
struct Steps {
  Sixteen first, second, third, fourth;
};

SOFTWOOD_INLINE Steps steps(const Sides& sides) {
  return {shuffle<StepFrom<0>>(sides.left, sides.right), shuffle<StepFrom<1>>(sides.left, sides.right),
          shuffle<StepFrom<2>>(sides.left, sides.right), shuffle<StepFrom<3>>(sides.left, sides.right)};
}

template <typename Body>
SOFTWOOD_INLINE void with_activation(Activation activation, float gamma, const Body& body) {
  switch (activation) {
    case Activation::smooth_step:
      return body(SmoothStep<float>(gamma));
    case Activation::smoother_step:
      return body(SmootherStep<float>(gamma));
    case Activation::logistic:
      return body(Logistic<float>(gamma));
  }
}

}  // namespace
}  // namespace softwood::SOFTWOOD_ISA

// Routing functions in the form that both passes use: for a split value t, the probability of the *less* likely side
// (the minor probability) and the slope S'(t), as functions of |t|. By symmetry S(t) is the minor probability for t < 0
// and its complement for t >= 0.
//
// This form is exact at the edges of the soft band (the minor probability is 0 if and only if |t| >= gamma/2), has full
// relative accuracy just inside them, and is never negative. NaN gives 0, so that probabilities are finite and counts
// of reached nodes are right; the forward pass sets the output to NaN by itself.
#pragma once

#include "simd.h"
#include "softwood/ensemble.h"

namespace softwood::SOFTWOOD_ISA {

// Position in the soft band: s = 1/2 at its centre, 0 at and beyond its edges (v or 1 - v of the cubic's usual form).
template <typename T>
struct Band {
  T half, inverse;
  explicit Band(T gamma) : half(gamma / 2), inverse(1 / gamma) {}
  SOFTWOOD_INLINE Vector<T> position(Vector<T> abs_t) const {
    return abs_t < broadcast<T>(half) ? (half - abs_t) * inverse : Vector<T>{};
  }
};

// Equation (4) of the paper: with v = t/gamma + 1/2, S = v^2 (3 - 2v).
template <typename T>
struct SmoothStep : Band<T> {
  using Band<T>::Band;
  SOFTWOOD_INLINE Vector<T> minor(Vector<T> abs_t) const {
    const Vector<T> s = this->position(abs_t);
    return s * s * (3 - 2 * s);
  }
  SOFTWOOD_INLINE Vector<T> slope(Vector<T> abs_t) const {
    const Vector<T> s = this->position(abs_t);
    return (6 * this->inverse) * s * (1 - s);
  }
};

// Degree 5: S = v^3 (10 - 15v + 6v^2); its first two derivatives vanish at the edges.
template <typename T>
struct SmootherStep : Band<T> {
  using Band<T>::Band;
  SOFTWOOD_INLINE Vector<T> minor(Vector<T> abs_t) const {
    const Vector<T> s = this->position(abs_t);
    return s * s * s * (10 + s * (6 * s - 15));
  }
  SOFTWOOD_INLINE Vector<T> slope(Vector<T> abs_t) const {
    const Vector<T> s = this->position(abs_t);
    const Vector<T> product = s * (1 - s);
    return (30 * this->inverse) * product * product;
  }
};

// exp(-a) for a >= 0; 0 where the result would be subnormal, and for NaN.
template <typename T>
SOFTWOOD_INLINE Vector<T> exp_of_minus(Vector<T> a) {
  constexpr bool single = sizeof(T) == 4;
  constexpr T log2_e = T(1.44269504088896340736);
  constexpr T ln2_high = single ? T(0.693359375) : T(0.693147180369123816490);
  constexpr T ln2_low = single ? T(-2.12194440e-4) : T(1.90821492927058770002e-10);
  constexpr T rounder = single ? T(12582912.0) : T(6755399441055744.0);  // 1.5 * 2^(mantissa bits)
  constexpr int mantissa = single ? 23 : 52;
  constexpr Integer<T> bias = single ? 127 : 1023;
  constexpr T limit = single ? T(87) : T(708);

  const Vector<T> clipped = a > broadcast<T>(limit) ? broadcast<T>(limit) : a;
  const Vector<T> shifted = rounder - clipped * log2_e;
  const Vector<T> n = shifted - rounder;
  const Vector<T> r = (-clipped - n * ln2_high) - n * ln2_low;
  constexpr int terms = single ? 7 : 13;  // of the Taylor series, for |r| <= ln(2)/2
  Vector<T> series = broadcast<T>(1);
#pragma GCC unroll 13
  for (int i = terms; i >= 1; --i) series = 1 + r * series * T(1.0 / i);
  const Integers<T> exponent = (Integers<T>)shifted - (Integers<T>)broadcast<T>(rounder) + bias;
  const Vector<T> result = series * (Vector<T>)(exponent << mantissa);
  return a <= broadcast<T>(limit) ? result : Vector<T>{};
}

// S = 1 / (1 + exp(-t/gamma)): never exactly 0 or 1, so all nodes are reached.
template <typename T>
struct Logistic {
  T inverse;
  explicit Logistic(T gamma) : inverse(1 / gamma) {}
  SOFTWOOD_INLINE Vector<T> minor(Vector<T> abs_t) const {
    const Vector<T> e = exp_of_minus<T>(abs_t * inverse);
    return e / (1 + e);
  }
  SOFTWOOD_INLINE Vector<T> slope(Vector<T> abs_t) const {
    const Vector<T> e = exp_of_minus<T>(abs_t * inverse);
    return inverse * e / ((1 + e) * (1 + e));
  }
};

// Calls `body` with the routing function of an ensemble.
template <typename T, typename Body>
SOFTWOOD_INLINE void with_activation(const Ensemble<T>& ensemble, Body&& body) {
  switch (ensemble.activation) {
    case Activation::smooth_step:
      return body(SmoothStep<T>(ensemble.gamma));
    case Activation::smoother_step:
      return body(SmootherStep<T>(ensemble.gamma));
    case Activation::logistic:
      return body(Logistic<T>(ensemble.gamma));
  }
}

// The |t| from which on routing is hard.
template <typename T>
SOFTWOOD_INLINE T hard_edge(const Ensemble<T>& ensemble) {
  return ensemble.activation == Activation::logistic ? T(__builtin_inf()) : ensemble.gamma / 2;
}

// How a sample that arrives at a split with some probability leaves it.
template <typename T>
struct Routed {
  Vector<T> left, right;  // probabilities of arriving at the children; their sum is that of the parent
  Vector<T> minor;        // the smaller of the two: 0 where the parent is not fractional, or not reached
};

// By the sign bit, which takes one instruction less than a comparison. -0 counts as negative, where both sides are
// equal.
template <typename T>
SOFTWOOD_INLINE Integers<T> is_negative(Vector<T> t) {
  return (Integers<T>)t < Integers<T>{};
}

template <typename T, typename Act>
SOFTWOOD_INLINE Vector<T> minor_probability(const Act& activation, Vector<T> t, Vector<T> probability) {
  return probability * activation.minor(absolute<T>(t));
}

template <typename T, typename Act>
SOFTWOOD_INLINE Routed<T> route(const Act& activation, Vector<T> t, Vector<T> probability) {
  const Vector<T> minor = minor_probability<T>(activation, t, probability);
  const Vector<T> major = probability - minor;
  return {select_by_sign<T>(t, minor, major), select_by_sign<T>(t, major, minor), minor};
}

// The backward step at a split, from the expectations of its children.
template <typename T>
struct Combined {
  Vector<T> expected, grad_t;
};

template <typename T, typename Act>
SOFTWOOD_INLINE Combined<T> combine(const Act& activation, Vector<T> t, Vector<T> probability, Vector<T> expected_left,
                                    Vector<T> expected_right) {
  const Vector<T> abs_t = absolute<T>(t);
  const Vector<T> minor = activation.minor(abs_t);
  const Vector<T> expected_major = select_by_sign<T>(t, expected_right, expected_left);
  const Vector<T> expected_minor = select_by_sign<T>(t, expected_left, expected_right);
  const Vector<T> grad_t = activation.slope(abs_t) * probability * (expected_left - expected_right);
  return {expected_major + minor * (expected_minor - expected_major),
          probability != Vector<T>{} ? grad_t : Vector<T>{}};
}

}  // namespace softwood::SOFTWOOD_ISA

// Sixteen floats as one logical vector on every instruction set: one register, or two or four that are always used
// together. (GCC takes a vector type that is wider than the registers apart into single numbers.)
#pragma once

#include <utility>

#include "simd.h"

namespace softwood::SOFTWOOD_ISA {

// A tree of halves instead of an array: compilers keep the members in registers.
template <int kRegisters>
struct Registers {
  Registers<kRegisters / 2> low, high;
};
template <>
struct Registers<1> {
  Vector<float> vector;
};

inline constexpr int kRegisterLanes = kLanes<float>;
inline constexpr int kSixteenRegisters = 16 / kRegisterLanes;
using Sixteen = Registers<kSixteenRegisters>;

template <int n>
SOFTWOOD_INLINE Registers<n> load_registers(const float* from) {
  if constexpr (n == 1) {
    return {load(from)};
  } else {
    constexpr int half = n / 2;
    return {load_registers<half>(from), load_registers<half>(from + half * kRegisterLanes)};
  }
}
SOFTWOOD_INLINE Sixteen load_sixteen(const float* from) { return load_registers<kSixteenRegisters>(from); }

template <int n>
SOFTWOOD_INLINE void store_sixteen(float* to, const Registers<n>& v) {
  if constexpr (n == 1) {
    store<float>(to, v.vector);
  } else {
    store_sixteen(to, v.low);
    store_sixteen(to + n / 2 * kRegisterLanes, v.high);
  }
}

// The same function on each register.
template <typename Function, int n, typename... More>
SOFTWOOD_INLINE Registers<n> map(const Function& function, const Registers<n>& first, const More&... more) {
  if constexpr (n == 1) {
    return {function(first.vector, more.vector...)};
  } else {
    return {map(function, first.low, more.low...), map(function, first.high, more.high...)};
  }
}

SOFTWOOD_INLINE Sixteen operator+(const Sixteen& a, const Sixteen& b) {
  return map([](auto x, auto y) __attribute__((always_inline)) { return x + y; }, a, b);
}
SOFTWOOD_INLINE Sixteen operator-(const Sixteen& a, const Sixteen& b) {
  return map([](auto x, auto y) __attribute__((always_inline)) { return x - y; }, a, b);
}
SOFTWOOD_INLINE Sixteen operator*(const Sixteen& a, const Sixteen& b) {
  return map([](auto x, auto y) __attribute__((always_inline)) { return x * y; }, a, b);
}
SOFTWOOD_INLINE Sixteen operator*(const Sixteen& a, float factor) {
  return map([factor](auto x) __attribute__((always_inline)) { return x * factor; }, a);
}
SOFTWOOD_INLINE Sixteen& operator+=(Sixteen& a, const Sixteen& b) { return a = a + b; }

// One bit per lane that is not 0, the first lane lowest.
template <int n>
SOFTWOOD_INLINE std::uint32_t nonzero_bits(const Registers<n>& v) {
  if constexpr (n == 1) {
    return bits<float>(v.vector != Vector<float>{});
  } else {
    return nonzero_bits(v.low) | nonzero_bits(v.high) << (n / 2 * kRegisterLanes);
  }
}

// The same order of additions on every machine.
SOFTWOOD_INLINE float sum_lanes(const float* v) {
  float four[4];
  for (int i = 0; i < 4; ++i) four[i] = (v[i] + v[i + 8]) + (v[i + 4] + v[i + 12]);
  return (four[0] + four[2]) + (four[1] + four[3]);
}

template <int i, int n>
SOFTWOOD_INLINE Vector<float> nth_register(const Registers<n>& v) {
  if constexpr (n == 1) {
    return v.vector;
  } else if constexpr (i < n / 2) {
    return nth_register<i>(v.low);
  } else {
    return nth_register<i - n / 2>(v.high);
  }
}

// Lane i of the result is lane Pattern::source(i) of a (below 16) or of b (less 16).
template <typename Pattern>
struct Shuffle {
  static constexpr int W = kRegisterLanes;
  static constexpr int source(int lane) { return Pattern::source(lane); }

  // Which registers of a and b the result's register `i` takes its lanes from.
  struct Needed {
    int count = 0;
    int which[W] = {};
  };
  static constexpr Needed needed(int i) {
    Needed result;
    for (int lane = 0; lane < W; ++lane) {
      const int from = source(i * W + lane) / W;
      bool known = false;
      for (int j = 0; j < result.count; ++j) known = known || result.which[j] == from;
      if (!known) result.which[result.count++] = from;
    }
    return result;
  }

  template <int which>
  static SOFTWOOD_INLINE Vector<float> pick(const Sixteen& a, const Sixteen& b) {
    if constexpr (which < kSixteenRegisters)
      return nth_register<which>(a);
    else
      return nth_register<which - kSixteenRegisters>(b);
  }

  // The lanes from the first two registers at once, then those of one more register at a time.
  template <int i, int n_done, int... kLane>
  static SOFTWOOD_INLINE Vector<float> add_sources(Vector<float> done, const Sixteen& a, const Sixteen& b,
                                                   std::integer_sequence<int, kLane...> lanes) {
    constexpr Needed from = needed(i);
    if constexpr (n_done == from.count) {
      return done;
    } else {
      constexpr int next = from.which[n_done];
      const Vector<float> merged = __builtin_shufflevector(
          done, pick<next>(a, b), (source(i * W + kLane) / W == next ? W + source(i * W + kLane) % W : kLane)...);
      return add_sources<i, n_done + 1>(merged, a, b, lanes);
    }
  }
  template <int i, int... kLane>
  static SOFTWOOD_INLINE Vector<float> part(const Sixteen& a, const Sixteen& b,
                                            std::integer_sequence<int, kLane...> lanes) {
    constexpr Needed from = needed(i);
    constexpr int first = from.which[0], second = from.which[from.count > 1 ? 1 : 0];
    const Vector<float> two =
        __builtin_shufflevector(pick<first>(a, b), pick<second>(a, b),
                                (source(i * W + kLane) / W == first    ? source(i * W + kLane) % W
                                 : source(i * W + kLane) / W == second ? W + source(i * W + kLane) % W
                                                                       : kLane)...);
    return add_sources<i, (from.count > 1 ? 2 : 1)>(two, a, b, lanes);
  }
  template <int begin, int n>
  static SOFTWOOD_INLINE Registers<n> parts(const Sixteen& a, const Sixteen& b) {
    if constexpr (n == 1) {
      return {part<begin>(a, b, std::make_integer_sequence<int, W>{})};
    } else {
      return {parts<begin, n / 2>(a, b), parts<begin + n / 2, n / 2>(a, b)};
    }
  }
};

template <typename Pattern>
SOFTWOOD_INLINE Sixteen shuffle(const Sixteen& a, const Sixteen& b) {
  return Shuffle<Pattern>::template parts<0, kSixteenRegisters>(a, b);
}
template <typename Pattern>
SOFTWOOD_INLINE Sixteen shuffle(const Sixteen& a) {
  return Shuffle<Pattern>::template parts<0, kSixteenRegisters>(a, a);
}

}  // namespace softwood::SOFTWOOD_ISA

// Sixteen integers of 32 bits as one logical vector, beside `Sixteen` floats.
#pragma once

#include "sixteen.h"

namespace softwood::SOFTWOOD_ISA {

template <int kRegisters>
struct IntegerRegisters {
  IntegerRegisters<kRegisters / 2> low, high;
};
template <>
struct IntegerRegisters<1> {
  Integers<float> vector;
};
using SixteenIntegers = IntegerRegisters<kSixteenRegisters>;

// a[2 i] * low + a[2 i + 1] * high, where `weights` holds low and high in its halves, for 16 pairs of 16-bit integers.
SOFTWOOD_INLINE Integers<float> multiply_pairs(const std::int16_t* pairs, std::uint32_t weights) {
#if defined(__AVX512BW__)
  return (Integers<float>)_mm512_madd_epi16(_mm512_load_si512(pairs), _mm512_set1_epi32(std::int32_t(weights)));
#elif defined(__AVX2__)
  return (Integers<float>)_mm256_madd_epi16(_mm256_load_si256(reinterpret_cast<const __m256i*>(pairs)),
                                            _mm256_set1_epi32(std::int32_t(weights)));
#elif defined(__SSE2__) && !defined(SOFTWOOD_VECTOR_BYTES)
  return (Integers<float>)_mm_madd_epi16(_mm_load_si128(reinterpret_cast<const __m128i*>(pairs)),
                                         _mm_set1_epi32(std::int32_t(weights)));
#else
  const Integers<float> both = load_integers<float>(reinterpret_cast<const std::int32_t*>(pairs));
  const auto low = std::int32_t(weights & 0xffff), high = std::int32_t(weights >> 16);
  return ((both << 16) >> 16) * low + (both >> 16) * high;  // little endian: the first of a pair is the low half
#endif
}

template <int n>
SOFTWOOD_INLINE void add_pairs(IntegerRegisters<n>& to, const std::int16_t* pairs, std::uint32_t weights) {
  if constexpr (n == 1) {
    to.vector += multiply_pairs(pairs, weights);
  } else {
    add_pairs(to.low, pairs, weights);
    add_pairs(to.high, pairs + n * kRegisterLanes, weights);
  }
}

template <int n>
SOFTWOOD_INLINE Registers<n> to_floats(const IntegerRegisters<n>& v) {
  if constexpr (n == 1) {
    return {__builtin_convertvector(v.vector, Vector<float>)};
  } else {
    return {to_floats(v.low), to_floats(v.high)};
  }
}

// Nearest integers, ties to even; all must be within range.
SOFTWOOD_INLINE Integers<float> round_to_integers(Vector<float> v) {
#if defined(__AVX512F__)
  return (Integers<float>)_mm512_cvtps_epi32(v);
#elif defined(__AVX2__)
  return (Integers<float>)_mm256_cvtps_epi32(v);
#elif defined(__SSE2__) && !defined(SOFTWOOD_VECTOR_BYTES)
  return (Integers<float>)_mm_cvtps_epi32(v);
#else
  Integers<float> rounded;
  for (int i = 0; i < kLanes<float>; ++i) rounded[i] = std::int32_t(__builtin_rintf(v[i]));
  return rounded;
#endif
}

// to[i] += the integer nearest to v[i].
template <int n>
SOFTWOOD_INLINE void add_rounded(std::int32_t* to, const Registers<n>& v) {
  if constexpr (n == 1) {
    store_integers<float>(to, load_integers<float>(to) + round_to_integers(v.vector));
  } else {
    add_rounded(to, v.low);
    add_rounded(to + n / 2 * kRegisterLanes, v.high);
  }
}

}  // namespace softwood::SOFTWOOD_ISA

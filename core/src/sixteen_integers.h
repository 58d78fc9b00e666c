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

// The same for pairs of bytes without sign.
SOFTWOOD_INLINE Integers<float> multiply_pairs(const std::uint8_t* pairs, std::uint32_t weights) {
#if defined(__AVX512BW__)
  const __m512i wide = _mm512_cvtepu8_epi16(_mm256_load_si256(reinterpret_cast<const __m256i*>(pairs)));
  return (Integers<float>)_mm512_madd_epi16(wide, _mm512_set1_epi32(std::int32_t(weights)));
#elif defined(__AVX2__)
  const __m256i wide = _mm256_cvtepu8_epi16(_mm_load_si128(reinterpret_cast<const __m128i*>(pairs)));
  return (Integers<float>)_mm256_madd_epi16(wide, _mm256_set1_epi32(std::int32_t(weights)));
#elif defined(__SSE2__) && !defined(SOFTWOOD_VECTOR_BYTES)
  const __m128i wide = _mm_unpacklo_epi8(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(pairs)), _mm_setzero_si128());
  return (Integers<float>)_mm_madd_epi16(wide, _mm_set1_epi32(std::int32_t(weights)));
#else
  typedef std::uint16_t Shorts __attribute__((vector_size(2 * kRegisterLanes), aligned(1)));
  const auto both = __builtin_convertvector(*reinterpret_cast<const Shorts*>(pairs), Integers<float>);
  const auto low = std::int32_t(weights & 0xffff), high = std::int32_t(weights >> 16);
  return (both & 0xff) * low + (both >> 8) * high;  // little endian: the first of a pair is the low half
#endif
}

template <typename T, int n>
SOFTWOOD_INLINE void add_pairs(IntegerRegisters<n>& to, const T* pairs, std::uint32_t weights) {
  if constexpr (n == 1) {
    to.vector += multiply_pairs(pairs, weights);
  } else {
    add_pairs(to.low, pairs, weights);
    add_pairs(to.high, pairs + n * kRegisterLanes, weights);
  }
}

template <int n>
SOFTWOOD_INLINE IntegerRegisters<n> load_sixteen_integers(const std::int32_t* from) {
  if constexpr (n == 1) {
    return {load_integers<float>(from)};
  } else {
    return {load_sixteen_integers<n / 2>(from), load_sixteen_integers<n / 2>(from + n / 2 * kRegisterLanes)};
  }
}

template <int n>
SOFTWOOD_INLINE void store_sixteen_integers(std::int32_t* to, const IntegerRegisters<n>& v) {
  if constexpr (n == 1) {
    store_integers<float>(to, v.vector);
  } else {
    store_sixteen_integers(to, v.low);
    store_sixteen_integers(to + n / 2 * kRegisterLanes, v.high);
  }
}

template <int n>
SOFTWOOD_INLINE IntegerRegisters<n> difference(const IntegerRegisters<n>& a, const IntegerRegisters<n>& b) {
  if constexpr (n == 1) {
    return {a.vector - b.vector};
  } else {
    return {difference(a.low, b.low), difference(a.high, b.high)};
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

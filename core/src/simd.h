// Vectors of the widest kind that this translation unit is compiled for. A *lane* is one of the values of a vector.
//
// The kernels are compiled once per instruction set from one source (see CMakeLists.txt). Everything here is written
// with the compiler's vector extensions; the few x86 intrinsics (masks, partial loads, compress and expand) have
// portable equivalents next to them. All names are in a namespace of the instruction set, so that the linker cannot use
// the code of one set for another.
#pragma once

#include <cstdint>
#include <utility>

#include "inline.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace softwood::SOFTWOOD_ISA {

#if defined(SOFTWOOD_VECTOR_BYTES)  // for tests of wide vectors on machines without them
inline constexpr int kVectorBytes = SOFTWOOD_VECTOR_BYTES;
#elif defined(__AVX512F__)
inline constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
inline constexpr int kVectorBytes = 32;
#else
inline constexpr int kVectorBytes = 16;
#endif

// `Vector` has `kLanes<T>` values; `Integers` has as many signed integers of the same width, for indices and masks (-1
// for true, 0 for false), which is what the comparison of two vectors gives. Memory is accessed through the types named
// `Anywhere`, which need no alignment; unlike memcpy they tell the compiler that a store cannot change a pointer.
template <typename T>
struct Lanes;
template <>
struct Lanes<float> {
  typedef float Vector __attribute__((vector_size(kVectorBytes)));
  typedef std::int32_t Integers __attribute__((vector_size(kVectorBytes)));
  typedef float VectorAnywhere __attribute__((vector_size(kVectorBytes), aligned(4)));
  typedef std::int32_t IntegersAnywhere __attribute__((vector_size(kVectorBytes), aligned(4)));
  using Integer = std::int32_t;
};
template <>
struct Lanes<double> {
  typedef double Vector __attribute__((vector_size(kVectorBytes)));
  typedef std::int64_t Integers __attribute__((vector_size(kVectorBytes)));
  typedef double VectorAnywhere __attribute__((vector_size(kVectorBytes), aligned(8)));
  typedef std::int64_t IntegersAnywhere __attribute__((vector_size(kVectorBytes), aligned(8)));
  using Integer = std::int64_t;
};

template <typename T>
using Vector = typename Lanes<T>::Vector;
template <typename T>
using Integers = typename Lanes<T>::Integers;
template <typename T>
using Integer = typename Lanes<T>::Integer;
template <typename T>
inline constexpr int kLanes = kVectorBytes / int(sizeof(T));

template <typename T>
SOFTWOOD_INLINE Vector<T> load(const T* from) {
  return *reinterpret_cast<const typename Lanes<T>::VectorAnywhere*>(from);
}

template <typename T>
SOFTWOOD_INLINE Integers<T> load_integers(const Integer<T>* from) {
  return *reinterpret_cast<const typename Lanes<T>::IntegersAnywhere*>(from);
}

template <typename T>
SOFTWOOD_INLINE void store(T* to, Vector<T> v) {
  *reinterpret_cast<typename Lanes<T>::VectorAnywhere*>(to) = v;
}

template <typename T>
SOFTWOOD_INLINE void store_integers(Integer<T>* to, Integers<T> v) {
  *reinterpret_cast<typename Lanes<T>::IntegersAnywhere*>(to) = v;
}

template <typename T>
SOFTWOOD_INLINE Vector<T> broadcast(T value) {
  return value - Vector<T>{};
}

template <typename T>
SOFTWOOD_INLINE Integers<T> broadcast_integer(Integer<T> value) {
  return value - Integers<T>{};
}

template <typename T>
SOFTWOOD_INLINE Vector<T> absolute(Vector<T> v) {
  constexpr Integer<T> sign = Integer<T>(1) << (8 * sizeof(T) - 1);
  return (Vector<T>)((Integers<T>)v & ~broadcast_integer<T>(sign));
}

// By the sign bit of `v`, which -0 has too.
template <typename T>
SOFTWOOD_INLINE Vector<T> select_by_sign(Vector<T> v, Vector<T> if_negative, Vector<T> if_positive) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  if constexpr (sizeof(T) == 4)
    return _mm256_blendv_ps(if_positive, if_negative, v);
  else
    return _mm256_blendv_pd(if_positive, if_negative, v);
#else
  return (Integers<T>)v < Integers<T>{} ? if_negative : if_positive;
#endif
}

template <typename T>
SOFTWOOD_INLINE Integers<T> select_by_sign(Vector<T> v, Integers<T> if_negative, Integers<T> if_positive) {
  return (Integers<T>)select_by_sign<T>(v, (Vector<T>)if_negative, (Vector<T>)if_positive);
}

template <typename T>
SOFTWOOD_INLINE T sum(Vector<T> v) {
  T total = v[0];
  for (int i = 1; i < kLanes<T>; ++i) total += v[i];
  return total;
}

// The first `count` lanes of a vector, for the end of a row whose length is not a multiple of the lanes. Nothing beyond
// them is read or written.
template <typename T>
struct Tail {
  int count;
#if defined(__AVX512F__)
  std::uint32_t mask;
#elif defined(__AVX2__)
  __m256i mask;
#endif

  explicit SOFTWOOD_INLINE Tail(std::int64_t n) : count(int(n)) {
#if defined(__AVX512F__)
    mask = (1u << count) - 1;
#elif defined(__AVX2__)
    Integers<T> lane;
    for (int i = 0; i < kLanes<T>; ++i) lane[i] = i;
    mask = (__m256i)(lane < broadcast_integer<T>(count));
#endif
  }
};

template <typename T>
SOFTWOOD_INLINE Vector<T> load(const T* from, const Tail<T>& tail) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4)
    return _mm512_maskz_loadu_ps(__mmask16(tail.mask), from);
  else
    return _mm512_maskz_loadu_pd(__mmask8(tail.mask), from);
#elif defined(__AVX2__)
  if constexpr (sizeof(T) == 4)
    return _mm256_maskload_ps(from, tail.mask);
  else
    return _mm256_maskload_pd(from, tail.mask);
#else
  Vector<T> v{};
  for (int i = 0; i < tail.count; ++i) v[i] = from[i];
  return v;
#endif
}

template <typename T>
SOFTWOOD_INLINE void store(T* to, Vector<T> v, const Tail<T>& tail) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4)
    _mm512_mask_storeu_ps(to, __mmask16(tail.mask), v);
  else
    _mm512_mask_storeu_pd(to, __mmask8(tail.mask), v);
#else
  // By halves, quarters and so on: AVX2's masked store takes dozens of cycles on some processors.
  if (tail.count == kLanes<T>) return store(to, v);
  const char* from = reinterpret_cast<const char*>(&v);
  char* target = reinterpret_cast<char*>(to);
  if constexpr (kLanes<T> > 8) {
    if (tail.count & 8) {
      __builtin_memcpy(target, from, 8 * sizeof(T));
      from += 8 * sizeof(T);
      target += 8 * sizeof(T);
    }
  }
  if constexpr (kLanes<T> > 4) {
    if (tail.count & 4) {
      __builtin_memcpy(target, from, 4 * sizeof(T));
      from += 4 * sizeof(T);
      target += 4 * sizeof(T);
    }
  }
  if constexpr (kLanes<T> > 2) {
    if (tail.count & 2) {
      __builtin_memcpy(target, from, 2 * sizeof(T));
      from += 2 * sizeof(T);
      target += 2 * sizeof(T);
    }
  }
  if (tail.count & 1) __builtin_memcpy(target, from, sizeof(T));
#endif
}

// One bit per lane of a mask, the first lane lowest.
template <typename T>
SOFTWOOD_INLINE std::uint32_t bits(Integers<T> mask) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4)
    return _mm512_movepi32_mask((__m512i)mask);
  else
    return _mm512_movepi64_mask((__m512i)mask);
#elif defined(__AVX2__)
  if constexpr (sizeof(T) == 4)
    return std::uint32_t(_mm256_movemask_ps((__m256)mask));
  else
    return std::uint32_t(_mm256_movemask_pd((__m256d)mask));
#elif defined(__x86_64__)
  if constexpr (sizeof(T) == 4)
    return std::uint32_t(_mm_movemask_ps((__m128)mask));
  else
    return std::uint32_t(_mm_movemask_pd((__m128d)mask));
#else
  std::uint32_t result = 0;
  for (int i = 0; i < kLanes<T>; ++i) result |= std::uint32_t(mask[i] & 1) << i;
  return result;
#endif
}

SOFTWOOD_INLINE int count_bits(std::uint32_t b) { return __builtin_popcount(b); }

#if defined(__AVX2__) && !defined(__AVX512F__)
// For each set of lanes, the permutation (of 32-bit words) that moves them to the front, and its inverse.
template <int kWords>  // 32-bit words in a lane
struct Permutations {
  static constexpr int kCount = 1 << (8 / kWords);
  alignas(32) std::int32_t compress[kCount][8];
  alignas(32) std::int32_t expand[kCount][8];
  constexpr Permutations() : compress{}, expand{} {
    for (int set = 0; set < kCount; ++set) {
      int front = 0;
      for (int lane = 0; lane < 8 / kWords; ++lane) {
        for (int word = 0; word < kWords; ++word) expand[set][lane * kWords + word] = front * kWords + word;
        if (set >> lane & 1) {
          for (int word = 0; word < kWords; ++word) compress[set][front * kWords + word] = lane * kWords + word;
          ++front;
        }
      }
    }
  }
};
template <typename T>
inline constexpr Permutations<int(sizeof(T) / 4)> kPermutations{};
#endif

// Moves the lanes of `v` whose bit is set to the front, in order; the lanes after them are unspecified.
template <typename T, typename V>
SOFTWOOD_INLINE V compress(V v, std::uint32_t set) {
  static_assert(sizeof(V) == kVectorBytes);
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4)
    return (V)_mm512_maskz_compress_epi32(__mmask16(set), (__m512i)v);
  else
    return (V)_mm512_maskz_compress_epi64(__mmask8(set), (__m512i)v);
#elif defined(__AVX2__)
  const __m256i order = _mm256_load_si256((const __m256i*)kPermutations<T>.compress[set]);
  return (V)_mm256_permutevar8x32_epi32((__m256i)v, order);
#else
  V result{};
  int front = 0;
  for (int lane = 0; lane < kLanes<T>; ++lane) {
    if (set >> lane & 1) result[front++] = v[lane];
  }
  return result;
#endif
}

// The inverse of compress: the first lanes of `v` go to the lanes whose bit is set, in order; the others become 0.
template <typename T>
SOFTWOOD_INLINE Vector<T> expand(Vector<T> v, std::uint32_t set, [[maybe_unused]] Integers<T> mask) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4)
    return _mm512_maskz_expand_ps(__mmask16(set), v);
  else
    return _mm512_maskz_expand_pd(__mmask8(set), v);
#elif defined(__AVX2__)
  const __m256i order = _mm256_load_si256((const __m256i*)kPermutations<T>.expand[set]);
  return (Vector<T>)(_mm256_permutevar8x32_epi32((__m256i)v, order) & (__m256i)mask);
#else
  Vector<T> result{};
  int front = 0;
  for (int lane = 0; lane < kLanes<T>; ++lane) {
    if (set >> lane & 1) result[lane] = v[front++];
  }
  return result;
#endif
}

// One step of the sums below: in every `kDomain` lanes, the sums of adjacent sections of `kSection` lanes, first those
// of `a`, then those of `b`. The first terms of `a` are combined with the second terms of `b`: if the sections are
// halves, these stay in their lanes, which is cheaper than a shuffle.
template <typename T, int kDomain, int kSection, int... kLane>
SOFTWOOD_INLINE Vector<T> add_neighbours(Vector<T> a, Vector<T> b, std::integer_sequence<int, kLane...>) {
  constexpr auto source = [](int lane, int term) {
    const int base = lane / kDomain * kDomain, within = lane % kDomain;
    const int half = kDomain / 2, from_b = within / half;
    const int section = within % half / kSection, rest = within % kSection;
    return from_b * kLanes<T> + base + (2 * section + (term ^ from_b)) * kSection + rest;
  };
  const Vector<T> second = __builtin_shufflevector(a, b, source(kLane, 1)...);
#if defined(__AVX2__) && !defined(__AVX512F__)
  if constexpr (2 * kSection == kDomain) {  // GCC would use a shuffle, which fewer ports execute
    constexpr int from_b = (0 + ... + (source(kLane, 0) >= kLanes<T> ? 1 << kLane : 0));
    if constexpr (sizeof(T) == 4)
      return (Vector<T>)_mm256_blend_ps(a, b, from_b) + second;
    else
      return (Vector<T>)_mm256_blend_pd(a, b, from_b) + second;
  }
#endif
  return __builtin_shufflevector(a, b, source(kLane, 0)...) + second;
}

// One step of a transposition: in every two lanes at a distance of kDistance, swaps the second one of `a` with the
// first one of `b`.
template <typename T, int kDistance, int... kLane>
SOFTWOOD_INLINE void exchange(Vector<T>& a, Vector<T>& b, std::integer_sequence<int, kLane...>) {
  const Vector<T> first = __builtin_shufflevector(a, b, (kLane & kDistance ? kLanes<T> + kLane - kDistance : kLane)...);
  b = __builtin_shufflevector(a, b, (kLane & kDistance ? kLanes<T> + kLane : kLane + kDistance)...);
  a = first;
}

// Transposes a square of kLanes vectors.
template <typename T, int kDistance = kLanes<T> / 2>
SOFTWOOD_INLINE void transpose(Vector<T> (&rows)[kLanes<T>]) {
#pragma GCC unroll 16
  for (int i = 0; i < kLanes<T>; ++i) {
    if ((i & kDistance) == 0) {
      exchange<T, kDistance>(rows[i], rows[i + kDistance], std::make_integer_sequence<int, kLanes<T>>{});
    }
  }
  if constexpr (kDistance > 1) transpose<T, kDistance / 2>(rows);
}

// Adds sections of kSmallest lanes in every kDomain lanes: section i of the result, which is vectors[0], is the sum of
// the sections of vectors[i].
template <typename T, int kDomain, int kSmallest, int kSection = kDomain / 2>
SOFTWOOD_INLINE void fold_sections(Vector<T>* vectors) {
  if constexpr (kSection >= kSmallest) {
#pragma GCC unroll 4
    for (int i = 0; i < kSection / kSmallest; ++i) {
      vectors[i] = add_neighbours<T, kDomain, kSection>(vectors[2 * i], vectors[2 * i + 1],
                                                        std::make_integer_sequence<int, kLanes<T>>{});
    }
    fold_sections<T, kDomain, kSmallest, kSection / 2>(vectors);
  }
}

// Values in a *part* of a vector, 128 bits: shuffles inside a part are cheaper than across parts.
template <typename T>
inline constexpr int kPart = 16 / int(sizeof(T));

// Sums of kPart vectors inside each part: lane i of a part is the sum over that part of vectors[i].
template <typename T>
SOFTWOOD_INLINE Vector<T> sum_parts(Vector<T> (&vectors)[kPart<T>]) {
  fold_sections<T, kPart<T>, 1>(vectors);
  return vectors[0];
}

// From the results of sum_parts for kLanes / kPart sets of vectors, the whole sum of every vector.
template <typename T>
SOFTWOOD_INLINE Vector<T> add_parts(Vector<T> (&sums)[kLanes<T> / kPart<T>]) {
  fold_sections<T, kLanes<T>, kPart<T>>(sums);
  return sums[0];
}

// Treats subnormal numbers as zero during its lifetime: they are negligible here and cost a hundred cycles each.
class FlushSubnormals {
 public:
#if defined(__x86_64__)
  FlushSubnormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040); }
  ~FlushSubnormals() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#elif defined(__aarch64__)
  FlushSubnormals() {
    __asm__ volatile("mrs %0, fpcr" : "=r"(saved_));
    __asm__ volatile("msr fpcr, %0" : : "r"(saved_ | (std::uint64_t(1) << 24)));
  }
  ~FlushSubnormals() { __asm__ volatile("msr fpcr, %0" : : "r"(saved_)); }

 private:
  std::uint64_t saved_;
#else
  FlushSubnormals() {}
  ~FlushSubnormals() {}
#endif
};

}  // namespace softwood::SOFTWOOD_ISA

// One vector of Adam (Kingma and Ba), with decoupled weight decay and a proximal step for L1.
#pragma once

#include <cmath>

#include "simd.h"
#include "training_kernels.h"

namespace softwood::SOFTWOOD_ISA {

template <typename T>
SOFTWOOD_INLINE Vector<T> square_root(Vector<T> v) {
#if defined(__AVX512F__)
  // Masked forms with all lanes set: the plain ones make some compilers warn of an uninitialised value.
  if constexpr (sizeof(T) == 4)
    return (Vector<T>)_mm512_maskz_sqrt_ps(0xffff, (__m512)v);
  else
    return (Vector<T>)_mm512_maskz_sqrt_pd(0xff, (__m512d)v);
#elif defined(__AVX2__)
  if constexpr (sizeof(T) == 4)
    return (Vector<T>)_mm256_sqrt_ps((__m256)v);
  else
    return (Vector<T>)_mm256_sqrt_pd((__m256d)v);
#elif defined(__x86_64__)
  if constexpr (sizeof(T) == 4)
    return (Vector<T>)_mm_sqrt_ps((__m128)v);
  else
    return (Vector<T>)_mm_sqrt_pd((__m128d)v);
#else
  for (int i = 0; i < kLanes<T>; ++i) v[i] = std::sqrt(v[i]);
  return v;
#endif
}

// Updates the moments and returns the new value. A second moment of infinity leaves the value as it is, but for decay.
template <typename T>
SOFTWOOD_INLINE Vector<T> adam(const AdamStep<T>& step, Vector<T> value, Vector<T> gradient, Vector<T>& first,
                               Vector<T>& second) {
  gradient += step.l2 * value;
  first += (gradient - first) * step.one_minus_beta1;
  second = second * step.beta2 + (gradient * gradient) * step.one_minus_beta2;
  value = value * step.keep - step.step_size * first / (square_root<T>(second) * step.inverse_sqrt_bias + step.epsilon);
  if (step.threshold > 0) {
    const Vector<T> size = absolute<T>(value) - step.threshold;
    const Vector<T> shrunk = value < Vector<T>{} ? -size : size;
    value = size > Vector<T>{} ? shrunk : Vector<T>{};
  }
  return value;
}

}  // namespace softwood::SOFTWOOD_ISA

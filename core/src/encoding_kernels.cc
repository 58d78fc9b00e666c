// src/softwood/tabular/encoding/features.py defines the kinds of features. The compiler vectorises these loops.
#include "encoding_kernels.h"

namespace softwood::SOFTWOOD_ISA {
namespace {

constexpr float kLargest = 1e6F;  // LARGEST_FEATURE in features.py

template <typename T>
inline T within(T x, T bound) {
  const T below = bound < x ? bound : x;
  return -bound < below ? below : -bound;
}

inline float root(float x) { return __builtin_sqrtf(x); }
inline double root(double x) { return __builtin_sqrt(x); }

// Writes (r(x) - mean) * scale of the values x for all features of one kind; without the scale if there are bounds. A
// missing value gives the mean, unless `keeps_missing` leaves it to r. `features` may be `values`.
template <bool keeps_missing, bool has_bounds, typename T, typename Function>
inline void standardise(const Encoding& encoding, FeatureKind kind, const T* values, T* features, const Function& r) {
  const int k = static_cast<int>(kind);
  const std::int64_t end = encoding.begin[k + 1];
  const float* const start = encoding.start.data();
  const float* const rate = encoding.rate.data();
  const float* const mean = encoding.mean.data();
  const float* const scale = encoding.scale.data();
  const float* const bound = encoding.bound.data();
#pragma GCC ivdep
  for (std::int64_t f = encoding.begin[k]; f < end; ++f) {
    const T x = values[f];
    const T centred = r(x, T(start[f]), T(rate[f])) - T(mean[f]);
    const T clipped = has_bounds ? within(centred, T(bound[f])) : within(centred * T(scale[f]), T(kLargest));
    features[f] = keeps_missing || x == x ? clipped : T(0);
  }
}

template <bool has_bounds, typename T>
inline void encode_features(const Encoding& encoding, const T* base, T* features) {
  const T* values = base;
  if (!encoding.in_order) {
    const std::int64_t p = encoding.begin[kFeatureKinds];
    const std::int32_t* const source = encoding.source.data();
    for (std::int64_t f = 0; f < p; ++f) features[f] = base[source[f]];
    values = features;
  }
  standardise<false, has_bounds>(encoding, FeatureKind::linear, values, features, [](T x, T, T) { return x; });
  standardise<false, has_bounds>(encoding, FeatureKind::soft_clip, values, features, [](T x, T start, T rate) {
    const T z = within((x - start) * rate, T(kLargest));
    return z / root(1 + (z / 3) * (z / 3));
  });
  standardise<false, has_bounds>(encoding, FeatureKind::ramp, values, features, [](T x, T start, T rate) {
    const T free = (x - start) * rate, below = free > 1 ? T(1) : free;
    return below < 0 ? T(0) : below;
  });
  standardise<false, has_bounds>(encoding, FeatureKind::level, values, features,
                                 [](T x, T start, T) { return x == start ? T(1) : T(0); });
  standardise<true, has_bounds>(encoding, FeatureKind::missing, values, features,
                                [](T x, T, T) { return x != x ? T(1) : T(0); });
}

template <typename T>
void encode(const Encoding& encoding, const T* base, T* features) {
  if (!encoding.bound.empty()) {
    encode_features<true>(encoding, base, features);
  } else {
    encode_features<false>(encoding, base, features);
  }
}

template <typename T>
bool are_finite(const T* row, std::int64_t n) {
  constexpr T largest = sizeof(T) == 4 ? T(__FLT_MAX__) : T(__DBL_MAX__);
  int found = 0;
  for (std::int64_t j = 0; j < n; ++j) found |= row[j] > largest || row[j] < -largest ? 1 : 0;
  return found == 0;
}

}  // namespace

extern const EncodingKernels encoding_kernels = {&encode<float>, &encode<double>, &are_finite<float>,
                                                 &are_finite<double>};

}  // namespace softwood::SOFTWOOD_ISA

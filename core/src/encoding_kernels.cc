// src/softwood/encoding.py defines the kinds of features. The compiler makes vectors of these loops.
#include "encoding_kernels.h"

#include "softwood/encoding.h"

namespace softwood::SOFTWOOD_ISA {
namespace {

constexpr float kLargest = 1e6F;  // as src/softwood/encoding.py says

template <typename T>
inline T within(T x, T bound) {
  const T below = bound < x ? bound : x;
  return -bound < below ? below : -bound;
}

inline float root(float x) { return __builtin_sqrtf(x); }
inline double root(double x) { return __builtin_sqrt(x); }

// Replaces the base values x that stand in `features` by (r(x) - mean) * scale, for all features of one kind; without
// the scale if there are bounds. A missing value gives the mean, unless r is told to decide by itself.
template <bool keeps_missing, bool has_bounds, typename T, typename Function>
inline void standardise(const EncodingView& encoding, FeatureKind kind, T* __restrict features, const Function& r) {
  const int k = static_cast<int>(kind);
  const std::int64_t end = encoding.begin[k + 1];
  for (std::int64_t f = encoding.begin[k]; f < end; ++f) {
    const T x = features[f];
    const T centred = r(x, T(encoding.start[f]), T(encoding.rate[f])) - T(encoding.mean[f]);
    const T held =
        has_bounds ? within(centred, T(encoding.bound[f])) : within(centred * T(encoding.scale[f]), T(kLargest));
    features[f] = keeps_missing || x == x ? held : T(0);
  }
}

template <bool has_bounds, typename T>
inline void encode_features(const EncodingView& encoding, const T* base, T* __restrict features) {
  const std::int64_t p = encoding.begin[kFeatureKinds];
  for (std::int64_t f = 0; f < p; ++f) features[f] = base[encoding.source[f]];
  standardise<false, has_bounds>(encoding, FeatureKind::linear, features, [](T x, T, T) { return x; });
  standardise<false, has_bounds>(encoding, FeatureKind::soft_clip, features, [](T x, T start, T rate) {
    const T z = within((x - start) * rate, T(kLargest));
    return z / root(1 + (z / 3) * (z / 3));
  });
  standardise<false, has_bounds>(encoding, FeatureKind::ramp, features, [](T x, T start, T rate) {
    const T free = (x - start) * rate, below = free > 1 ? T(1) : free;
    return below < 0 ? T(0) : below;
  });
  standardise<false, has_bounds>(encoding, FeatureKind::level, features,
                                 [](T x, T start, T) { return x == start ? T(1) : T(0); });
  standardise<true, has_bounds>(encoding, FeatureKind::missing, features,
                                [](T x, T, T) { return x != x ? T(1) : T(0); });
}

template <typename T>
void encode(const EncodingView& encoding, const T* base, T* features) {
  if (encoding.bound != nullptr) {
    encode_features<true>(encoding, base, features);
  } else {
    encode_features<false>(encoding, base, features);
  }
}

}  // namespace

extern const EncodingKernels encoding_kernels = {&encode<float>, &encode<double>};

}  // namespace softwood::SOFTWOOD_ISA

#include "softwood/encoding.h"

#include <algorithm>
#include <cmath>

#include "softwood/thread_pool.h"

namespace softwood {
namespace {

constexpr float kLargest = 1e6F;  // as src/softwood/encoding.py says
constexpr std::int64_t kBlockRows = 256;

template <typename T>
T within(T x, T bound) {
  const T below = bound < x ? bound : x;
  return -bound < below ? below : -bound;
}

// Replaces the base values x that stand in `features` by (r(x) - mean) * scale, for all features of one kind. A missing
// value gives the mean, unless r is told to decide by itself. The compiler makes vectors of these loops.
template <bool keeps_missing, typename T, typename Function>
void standardise(const Encoding& encoding, FeatureKind kind, T* __restrict features, const Function& r) {
  const int k = static_cast<int>(kind);
  for (std::int64_t f = encoding.begin[k]; f < encoding.begin[k + 1]; ++f) {
    const T x = features[f];
    const T value = (r(x, T(encoding.start[f]), T(encoding.rate[f])) - T(encoding.mean[f])) * T(encoding.scale[f]);
    const T held = within(value, T(kLargest));
    features[f] = keeps_missing || x == x ? held : T(0);
  }
}

}  // namespace

template <typename T>
void encode_row(const Encoding& encoding, const T* base, T* features) {
  for (std::int64_t f = 0; f < encoding.n_features(); ++f) features[f] = base[encoding.source[f]];
  standardise<false>(encoding, FeatureKind::linear, features, [](T x, T, T) { return x; });
  standardise<false>(encoding, FeatureKind::soft_clip, features, [](T x, T start, T rate) {
    const T z = within((x - start) * rate, T(kLargest));
    return z / std::sqrt(1 + (z / 3) * (z / 3));
  });
  standardise<false>(encoding, FeatureKind::ramp, features, [](T x, T start, T rate) {
    const T free = (x - start) * rate, below = free > 1 ? T(1) : free;
    return below < 0 ? T(0) : below;
  });
  standardise<false>(encoding, FeatureKind::level, features, [](T x, T start, T) { return x == start ? T(1) : T(0); });
  standardise<true>(encoding, FeatureKind::missing, features, [](T x, T, T) { return x != x ? T(1) : T(0); });
}

template <typename T>
void encode(const Encoding& encoding, const Rows<T>& base, T* features, int n_threads) {
  const std::int64_t n_blocks = (base.n_rows + kBlockRows - 1) / kBlockRows;
  parallel_for(n_blocks, n_threads, [&](std::int64_t block) {
    const std::int64_t end = std::min(base.n_rows, (block + 1) * kBlockRows);
    for (std::int64_t i = block * kBlockRows; i < end; ++i) {
      encode_row(encoding, base.row(i), features + i * encoding.n_features());
    }
  });
}

template void encode_row<float>(const Encoding&, const float*, float*);
template void encode_row<double>(const Encoding&, const double*, double*);
template void encode<float>(const Encoding&, const Rows<float>&, float*, int);
template void encode<double>(const Encoding&, const Rows<double>&, double*, int);

}  // namespace softwood

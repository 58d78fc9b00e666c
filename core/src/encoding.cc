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
  return std::max(-bound, std::min(x, bound));
}

// features[f] = (r(x) - mean) * scale for all features of one kind. A missing value gives the mean, unless r is told to
// decide by itself.
template <bool keeps_missing, typename T, typename Function>
void write(const Encoding& encoding, FeatureKind kind, const T* base, T* features, const Function& r) {
  const int k = static_cast<int>(kind);
  for (std::int64_t f = encoding.begin[k]; f < encoding.begin[k + 1]; ++f) {
    const T x = base[encoding.source[f]];
    const T value = (r(x, T(encoding.start[f]), T(encoding.rate[f])) - T(encoding.mean[f])) * T(encoding.scale[f]);
    features[f] = !keeps_missing && std::isnan(x) ? T(0) : within(value, T(kLargest));
  }
}

}  // namespace

template <typename T>
void encode_row(const Encoding& encoding, const T* base, T* features) {
  write<false>(encoding, FeatureKind::linear, base, features, [](T x, T, T) { return x; });
  write<false>(encoding, FeatureKind::soft_clip, base, features, [](T x, T start, T rate) {
    const T z = within((x - start) * rate, T(kLargest));
    return z / std::sqrt(1 + (z / 3) * (z / 3));
  });
  write<false>(encoding, FeatureKind::ramp, base, features,
               [](T x, T start, T rate) { return std::max(T(0), std::min((x - start) * rate, T(1))); });
  write<false>(encoding, FeatureKind::level, base, features, [](T x, T start, T) { return T(x == start); });
  write<true>(encoding, FeatureKind::missing, base, features, [](T x, T, T) { return T(std::isnan(x)); });
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

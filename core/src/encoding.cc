#include "softwood/encoding.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "encoding_kernels.h"
#include "softwood/thread_pool.h"

namespace softwood {
namespace {

constexpr std::int64_t kBlockRows = 256;

}  // namespace

template <typename T>
void encode_row(const Encoding& encoding, const T* base, T* features) {
  if constexpr (std::is_same_v<T, float>) {
    encoding_kernels().encode_floats(encoding, base, features);
  } else {
    encoding_kernels().encode_doubles(encoding, base, features);
  }
}

template <typename T>
std::int64_t first_infinity(const T* row, std::int64_t n) {
  bool finite;
  if constexpr (std::is_same_v<T, float>) {
    finite = encoding_kernels().floats_are_finite(row, n);
  } else {
    finite = encoding_kernels().doubles_are_finite(row, n);
  }
  return finite ? -1 : std::find_if(row, row + n, [](T value) { return std::isinf(value); }) - row;
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
template std::int64_t first_infinity<float>(const float*, std::int64_t);
template std::int64_t first_infinity<double>(const double*, std::int64_t);
template void encode<float>(const Encoding&, const Rows<float>&, float*, int);
template void encode<double>(const Encoding&, const Rows<double>&, double*, int);

}  // namespace softwood

// A NaN or an infinity has all bits of its exponent set. The test of the bits can be vectorised and does not depend on
// the floating-point mode.
#include "softwood/finite.h"

#include <bit>
#include <type_traits>

namespace softwood {
namespace {

template <typename T>
bool is_finite(T value) {
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  constexpr Bits exponent = sizeof(T) == 4 ? Bits{0x7f800000u} : static_cast<Bits>(0x7ff0000000000000ull);
  return (std::bit_cast<Bits>(value) & exponent) != exponent;
}

// Without an early exit, so that the loop is vectorised.
template <typename T>
bool all_finite(const T* values, std::int64_t count) {
  unsigned bad = 0;
  for (std::int64_t i = 0; i < count; ++i) bad |= !is_finite(values[i]);
  return bad == 0;
}

}  // namespace

template <typename T>
std::int64_t first_non_finite(const T* data, std::int64_t n_rows, std::int64_t n_columns, std::int64_t row_stride) {
  if (row_stride == n_columns && all_finite(data, n_rows * n_columns)) return -1;
  for (std::int64_t row = 0; row < n_rows; ++row) {
    const T* values = data + row * row_stride;
    if (all_finite(values, n_columns)) continue;
    for (std::int64_t column = 0; column < n_columns; ++column) {
      if (!is_finite(values[column])) return row * n_columns + column;
    }
  }
  return -1;
}

template std::int64_t first_non_finite(const float*, std::int64_t, std::int64_t, std::int64_t);
template std::int64_t first_non_finite(const double*, std::int64_t, std::int64_t, std::int64_t);

}  // namespace softwood

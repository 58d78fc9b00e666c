// finite.h: the first NaN or infinity at any position, in contiguous and in strided rows.
#include <limits>
#include <vector>

#include "check.h"
#include "softwood/finite.h"

using namespace softwood;

template <typename T>
static void every_position_is_found() {
  const std::int64_t n_rows = 5, n_columns = 37;
  for (std::int64_t stride : {n_columns, n_columns + 3}) {
    // The gap between rows contains NaN, which must not be read.
    std::vector<T> data(static_cast<std::size_t>(n_rows * stride), std::numeric_limits<T>::quiet_NaN());
    for (std::int64_t row = 0; row < n_rows; ++row) {
      for (std::int64_t column = 0; column < n_columns; ++column) {
        data[static_cast<std::size_t>(row * stride + column)] = column % 2 ? std::numeric_limits<T>::max() : T(-0.0);
      }
    }
    CHECK(first_non_finite(data.data(), n_rows, n_columns, stride) == -1);
    for (T bad : {std::numeric_limits<T>::quiet_NaN(), std::numeric_limits<T>::infinity(),
                  -std::numeric_limits<T>::infinity()}) {
      for (std::int64_t position = 0; position < n_rows * n_columns; ++position) {
        T& value = data[static_cast<std::size_t>(position / n_columns * stride + position % n_columns)];
        const T saved = value;
        value = bad;
        CHECK(first_non_finite(data.data(), n_rows, n_columns, stride) == position);
        value = saved;
      }
    }
  }
  CHECK(first_non_finite<T>(nullptr, 0, 4, 4) == -1);
}

int main() {
  every_position_is_found<float>();
  every_position_is_found<double>();
  return softwood::testing::report();
}

// Search for values that are not finite.
#pragma once

#include <cstdint>

namespace softwood {

// The position (row * n_columns + column) of the first NaN or infinity, row by row; -1 if all values are finite.
template <typename T>
std::int64_t first_non_finite(const T* data, std::int64_t n_rows, std::int64_t n_columns, std::int64_t row_stride);

}  // namespace softwood

// Rows that a backward pass has marked in its gradients (see `Gradients` in ensemble.h) are cleared, or moved out for
// callers that only want those. Afterwards all rows are zero and without marks, ready for the next pass, at a cost
// proportional to what was reached.
#pragma once

#include <cstdint>
#include <vector>

namespace softwood {

// Sets the marked rows of `a`, [n_rows, columns_a], and `b`, [n_rows, columns_b], to zero and removes the marks. Either
// array may be null.
template <typename T>
void clear_rows(std::uint8_t* marked, std::int64_t n_rows, T* a, std::int64_t columns_a, T* b, std::int64_t columns_b);

// The indices of the marked rows among n_rows, in order. Removes the marks.
std::vector<std::int64_t> take_marks(std::uint8_t* marked, std::int64_t n_rows);

// Moves these rows of `from`, [any, n_columns], to the rows of `to`, [rows.size(), n_columns], and leaves zeros behind.
template <typename T>
void take_rows(const std::vector<std::int64_t>& rows, std::int64_t n_columns, T* from, T* to);

}  // namespace softwood

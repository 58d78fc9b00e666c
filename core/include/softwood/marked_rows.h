// What becomes of the rows that a backward pass has marked in its gradients (see `Gradients` in ensemble.h): they are
// cleared, or taken out for those who want them alone. All rows are then zero and without marks: ready for the next
// pass, at a cost in proportion to what was reached.
#pragma once

#include <cstdint>
#include <vector>

namespace softwood {

// Sets the marked ones of n_rows rows of `a`, [n_rows, columns_a], and `b`, [n_rows, columns_b], to zero and removes
// the marks. Either array may be null.
template <typename T>
void clear_rows(std::uint8_t* marked, std::int64_t n_rows, T* a, std::int64_t columns_a, T* b, std::int64_t columns_b);

// The marked ones of n_rows rows, in order. Removes the marks.
std::vector<std::int64_t> take_marks(std::uint8_t* marked, std::int64_t n_rows);

// Moves these rows of `from`, [any, n_columns], to the rows of `to`, [rows.size(), n_columns], and puts zeros in their
// place.
template <typename T>
void take_rows(const std::vector<std::int64_t>& rows, std::int64_t n_columns, T* from, T* to);

}  // namespace softwood

// Takes the rows that a backward pass has marked out of its gradients, for those who want them alone (see
// `Gradients` in ensemble.h). What is left is zero and without marks: ready for the next pass.
#pragma once

#include <cstdint>
#include <vector>

namespace softwood {

// The marked ones of n_rows rows, in order. Removes the marks.
std::vector<std::int64_t> take_marks(std::uint8_t* marked, std::int64_t n_rows);

// Moves these rows of `from`, [any, n_columns], to the rows of `to`, [rows.size(), n_columns], and puts zeros in their
// place.
template <typename T>
void take_rows(const std::vector<std::int64_t>& rows, std::int64_t n_columns, T* from, T* to);

}  // namespace softwood

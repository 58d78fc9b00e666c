#include "softwood/marked_rows.h"

#include <algorithm>

#include "marked_runs.h"

namespace softwood {

template <typename T>
void clear_rows(std::uint8_t* marked, std::int64_t n_rows, T* a, std::int64_t columns_a, T* b, std::int64_t columns_b) {
  MarkedRuns runs(marked, n_rows);
  for (Run run = runs.next(); !run.is_empty(); run = runs.next()) {
    if (a != nullptr) std::fill(a + run.begin * columns_a, a + run.end * columns_a, T(0));
    if (b != nullptr) std::fill(b + run.begin * columns_b, b + run.end * columns_b, T(0));
  }
}

std::vector<std::int64_t> take_marks(std::uint8_t* marked, std::int64_t n_rows) {
  std::vector<std::int64_t> rows;
  MarkedRuns runs(marked, n_rows);
  for (Run run = runs.next(); !run.is_empty(); run = runs.next()) {
    for (std::int64_t row = run.begin; row < run.end; ++row) rows.push_back(row);
  }
  return rows;
}

template <typename T>
void take_rows(const std::vector<std::int64_t>& rows, std::int64_t n_columns, T* from, T* to) {
  for (std::int64_t row : rows) {
    T* const begin = from + row * n_columns;
    to = std::copy_n(begin, n_columns, to);
    std::fill_n(begin, n_columns, T(0));
  }
}

template void clear_rows(std::uint8_t*, std::int64_t, float*, std::int64_t, float*, std::int64_t);
template void clear_rows(std::uint8_t*, std::int64_t, double*, std::int64_t, double*, std::int64_t);
template void take_rows(const std::vector<std::int64_t>&, std::int64_t, float*, float*);
template void take_rows(const std::vector<std::int64_t>&, std::int64_t, double*, double*);

}  // namespace softwood

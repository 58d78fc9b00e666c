#include "softwood/marked_rows.h"

#include <algorithm>
#include <cstring>

namespace softwood {

namespace {

// Calls body(row) for each marked row, in order, and removes the mark.
template <typename Body>
void take_each(std::uint8_t* marked, std::int64_t n_rows, const Body& body) {
  constexpr std::int64_t kWord = 8, kBulk = 8 * kWord;
  for (std::int64_t begin = 0; begin < n_rows; begin += kBulk) {
    const std::int64_t end = std::min(begin + kBulk, n_rows);
    std::uint64_t words[kBulk / kWord] = {};
    std::memcpy(words, marked + begin, static_cast<std::size_t>(end - begin));
    std::uint64_t any = 0;
    for (std::uint64_t word : words) any |= word;
    if (any == 0) continue;  // mostly so in deep trees
    for (std::int64_t row = begin; row < end; ++row) {
      if (words[(row - begin) / kWord] == 0) {
        row += kWord - 1;
      } else if (marked[row] != 0) {
        marked[row] = 0;
        body(row);
      }
    }
  }
}

}  // namespace

template <typename T>
void clear_rows(std::uint8_t* marked, std::int64_t n_rows, T* a, std::int64_t columns_a, T* b, std::int64_t columns_b) {
  take_each(marked, n_rows, [&](std::int64_t row) {
    if (a != nullptr) std::fill_n(a + row * columns_a, columns_a, T(0));
    if (b != nullptr) std::fill_n(b + row * columns_b, columns_b, T(0));
  });
}

std::vector<std::int64_t> take_marks(std::uint8_t* marked, std::int64_t n_rows) {
  std::vector<std::int64_t> rows;
  take_each(marked, n_rows, [&](std::int64_t row) { rows.push_back(row); });
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

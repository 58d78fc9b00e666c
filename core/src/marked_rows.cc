#include "softwood/marked_rows.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace softwood {

namespace {

constexpr std::int64_t kWord = 8, kBulk = 8 * kWord;

// Bit i says whether marked[i] is set, for i < count <= kBulk.
std::uint64_t bits_of(const std::uint8_t* marked, std::int64_t count) {
  std::uint64_t result = 0;
  if constexpr (std::endian::native == std::endian::little) {
    std::uint64_t words[kBulk / kWord] = {};
    std::memcpy(words, marked, static_cast<std::size_t>(count));
    std::uint64_t any = 0;
    for (std::uint64_t word : words) any |= word;
    if (any == 0) return 0;  // mostly so in deep trees
    // The product moves the lowest bit of each byte, of which marks have no other, into its highest byte.
    for (std::int64_t i = 0; i < kBulk / kWord; ++i) result |= (words[i] * 0x0102040810204080u >> 56) << (kWord * i);
  } else {
    for (std::int64_t i = 0; i < count; ++i) result |= std::uint64_t{marked[i]} << i;
  }
  return result;
}

// Calls body(row, count) for all runs of marked rows, in order, and removes the marks. Goes from run to run: to look at
// each row would mean a wrong guess at every other one.
template <typename Body>
void take_runs(std::uint8_t* marked, std::int64_t n_rows, const Body& body) {
  for (std::int64_t begin = 0; begin < n_rows; begin += kBulk) {
    const std::int64_t count = std::min(kBulk, n_rows - begin);
    std::uint64_t rest = bits_of(marked + begin, count);
    if (rest == 0) continue;
    std::memset(marked + begin, 0, static_cast<std::size_t>(count));
    while (rest != 0) {
      const int first = std::countr_zero(rest);
      body(begin + first, std::int64_t{std::countr_one(rest >> first)});
      rest &= rest + (rest & -rest);  // the sum carries through the run
    }
  }
}

}  // namespace

template <typename T>
void clear_rows(std::uint8_t* marked, std::int64_t n_rows, T* a, std::int64_t columns_a, T* b, std::int64_t columns_b) {
  take_runs(marked, n_rows, [&](std::int64_t row, std::int64_t count) {
    if (a != nullptr) std::fill_n(a + row * columns_a, count * columns_a, T(0));
    if (b != nullptr) std::fill_n(b + row * columns_b, count * columns_b, T(0));
  });
}

std::vector<std::int64_t> take_marks(std::uint8_t* marked, std::int64_t n_rows) {
  std::vector<std::int64_t> rows;
  take_runs(marked, n_rows, [&](std::int64_t row, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) rows.push_back(row + i);
  });
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

// Walks through the marks of a backward pass (see Gradients in softwood/ensemble.h) from run to run of marked rows.
// Everything is inlined, because code of several instruction sets includes it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "inline.h"

namespace softwood {

// Marked rows begin, ..., end - 1.
struct Run {
  std::int64_t begin, end;
  SOFTWOOD_INLINE bool is_empty() const { return begin == end; }
};

// Finds runs of marked rows in order and removes their marks. A run ends at a multiple of 64 rows at the latest. Marks
// are read 64 at a time: to test each row would mean a mispredicted branch at every other one.
class MarkedRuns {
 public:
  SOFTWOOD_INLINE MarkedRuns(std::uint8_t* marked, std::int64_t n_rows) : marked_(marked), n_rows_(n_rows) {}

  // The next run; empty if there is none.
  SOFTWOOD_INLINE Run next() {
    while (rest_ == 0) {
      if (next_ >= n_rows_) return {n_rows_, n_rows_};
      base_ = next_;
      const std::int64_t n_left = n_rows_ - base_, count = n_left < kBulk ? n_left : kBulk;
      rest_ = take_bits(marked_ + base_, count);
      next_ = base_ + count;
    }
    const int first = __builtin_ctzll(rest_);
    const std::uint64_t above = ~(rest_ >> first);
    const int length = above == 0 ? int(kBulk) : __builtin_ctzll(above);
    rest_ &= rest_ + (rest_ & -rest_);  // the sum carries through the run
    return {base_ + first, base_ + first + length};
  }

 private:
  static constexpr std::int64_t kWord = 8, kBulk = 8 * kWord;

  // Bit i says whether marked[i] is set, for i < count <= kBulk. Sets these marks to 0.
  static SOFTWOOD_INLINE std::uint64_t take_bits(std::uint8_t* marked, std::int64_t count) {
    std::uint64_t words[kBulk / kWord] = {}, any = 0, result = 0;
    __builtin_memcpy(words, marked, std::size_t(count));
    for (std::uint64_t word : words) any |= word;
    if (any == 0) return 0;  // the usual case in deep trees
    __builtin_memset(marked, 0, std::size_t(count));
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    // The product moves the lowest bit of each byte, the only one that a mark has, into the highest byte.
    for (std::int64_t i = 0; i < kBulk / kWord; ++i) {
      result |= ((words[i] & 0x0101010101010101u) * 0x0102040810204080u >> 56) << (kWord * i);
    }
#else
    const auto* const bytes = reinterpret_cast<const std::uint8_t*>(words);
    for (std::int64_t i = 0; i < count; ++i) result |= std::uint64_t(bytes[i] & 1) << i;
#endif
    return result;
  }

  std::uint8_t* const marked_;
  const std::int64_t n_rows_;
  std::int64_t base_ = 0, next_ = 0;
  std::uint64_t rest_ = 0;
};

}  // namespace softwood

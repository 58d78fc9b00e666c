// The one matrix product that all dense work is made of: with sums over i,
//
//     finish(r, c, sum of a_row(r)[i * a_step] * b_row(i)[c])    for all rows r and vectors of columns c
//
// Rows are located by functions, so they may be anywhere; `a` is read value by value and broadcast, `b` by vectors.
// A tile of sums stays in registers until `finish` takes it. "Tile" means such a register tile throughout the core.
#pragma once

#include "simd.h"

namespace softwood::SOFTWOOD_ISA {

// Rows at a fixed distance, as such a function.
template <typename T>
struct Strided {
  const T* first;
  std::int64_t stride;
  SOFTWOOD_INLINE const T* operator()(std::int64_t i) const { return first + i * stride; }
};

// Rows and vectors of a tile: enough independent sums to hide the latency of multiply-add, and few enough for the
// registers (16 vectors up to AVX2, 32 from AVX-512 on).
inline constexpr int kTileHeight = kVectorBytes == 64 ? 8 : 6;
inline constexpr int kTileVectors = 2;

// Samples of a panel (see Kernels::arrange): the columns of a tile.
template <typename T>
inline constexpr int kPanelRows = kTileVectors * kLanes<T>;

// A tile of R rows and C vectors. `start`, if not null, holds the first term of each row. With kInPairs the loop takes
// two terms at a time, which is faster if their addresses need no further registers.
template <typename T, int R, int C, bool kHasTail, bool kInPairs, typename ARow, typename BRow, typename Finish>
SOFTWOOD_INLINE void gemm_tile(std::int64_t row, std::int64_t column, std::int64_t n_terms, const ARow& a_row,
                               std::int64_t a_step, const BRow& b_row, const T* start, const Tail<T>& tail,
                               const Finish& finish) {
  constexpr int W = kLanes<T>;
  const T* a[R];
  Vector<T> sums[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    a[r] = a_row(row + r);
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) sums[r][c] = start != nullptr ? broadcast<T>(start[row + r]) : Vector<T>{};
  }
  const auto add_term = [&](std::int64_t i) __attribute__((always_inline)) {
    const T* b = b_row(i) + column;
    Vector<T> columns[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) columns[c] = kHasTail && c == C - 1 ? load(b + c * W, tail) : load(b + c * W);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const T factor = a[r][i * a_step];
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) sums[r][c] += factor * columns[c];
    }
  };
  std::int64_t i = 0;
  for (; kInPairs && i + 2 <= n_terms; i += 2) {
    add_term(i);
    add_term(i + 1);
  }
  for (; i < n_terms; ++i) add_term(i);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      if constexpr (kHasTail) {
        if (c == C - 1) {
          finish(row + r, column + c * W, sums[r][c], tail);
          continue;
        }
      }
      finish(row + r, column + c * W, sums[r][c]);
    }
  }
}

// A tile whose height is only known at run time.
template <typename T, int C, bool kHasTail, bool kInPairs, int R = C == 3 ? kTileHeight / 2 : kTileHeight,
          typename... Arguments>
SOFTWOOD_INLINE void gemm_tile_of_height(std::int64_t height, Arguments&&... arguments) {
  if (height == R) {
    gemm_tile<T, R, C, kHasTail, kInPairs>(arguments...);
  } else if constexpr (R > 1) {
    gemm_tile_of_height<T, C, kHasTail, kInPairs, R - 1>(height, arguments...);
  }
}

// All rows of one column of tiles, in tiles of about equal height: short ones would not hide the latency.
template <typename T, int C, bool kHasTail, bool kInPairs = false, typename ARow, typename BRow, typename Finish>
inline void gemm_column(std::int64_t n_rows, std::int64_t column, std::int64_t n_terms, const ARow& a_row,
                        std::int64_t a_step, const BRow& b_row, const T* start, const Tail<T>& tail,
                        const Finish& finish) {
  for (std::int64_t row = 0, height; row < n_rows; row += height) {
    const std::int64_t n_tiles = (n_rows - row + kTileHeight - 1) / kTileHeight;
    height = (n_rows - row + n_tiles - 1) / n_tiles;
    gemm_tile_of_height<T, C, kHasTail, kInPairs>(height, row, column, n_terms, a_row, a_step, b_row, start, tail,
                                                  finish);
  }
}

template <typename T, typename ARow, typename BRow, typename Finish>
inline void gemm(std::int64_t n_rows, std::int64_t n_columns, std::int64_t n_terms, const ARow& a_row,
                 std::int64_t a_step, const BRow& b_row, const Finish& finish) {
  constexpr int W = kLanes<T>, C = kTileVectors;
  const Tail<T> tail(n_columns % W);
  const auto columns = [&](auto n_vectors, auto has_tail, std::int64_t column) {
    gemm_column<T, n_vectors(), has_tail()>(n_rows, column, n_terms, a_row, a_step, b_row, nullptr, tail, finish);
  };
  constexpr std::integral_constant<int, 1> one;
  constexpr std::integral_constant<int, 2> two;
  constexpr std::integral_constant<int, 3> three;
  std::int64_t column = 0;
  if (n_rows <= kTileHeight / 2) {  // a short tile must be wide, to have enough independent sums
    for (; column + 3 * W <= n_columns; column += 3 * W) columns(three, std::false_type{}, column);
  }
  for (; column + C * W <= n_columns; column += C * W) columns(two, std::false_type{}, column);
  const std::int64_t rest = n_columns - column;
  if (rest > W) {
    columns(two, std::true_type{}, column);
  } else if (rest == W) {
    columns(one, std::false_type{}, column);
  } else if (rest > 0) {
    columns(one, std::true_type{}, column);
  }
}

// Ways to finish: write or add the sums to rows that are located by a function.
template <typename T, typename OutRow>
struct Write {
  OutRow out_row;
  SOFTWOOD_INLINE void operator()(std::int64_t row, std::int64_t column, Vector<T> sum) const {
    store(out_row(row) + column, sum);
  }
  SOFTWOOD_INLINE void operator()(std::int64_t row, std::int64_t column, Vector<T> sum, const Tail<T>& tail) const {
    store(out_row(row) + column, sum, tail);
  }
};

template <typename T, typename OutRow>
struct Add {
  OutRow out_row;
  SOFTWOOD_INLINE void operator()(std::int64_t row, std::int64_t column, Vector<T> sum) const {
    T* to = out_row(row) + column;
    store(to, load(to) + sum);
  }
  SOFTWOOD_INLINE void operator()(std::int64_t row, std::int64_t column, Vector<T> sum, const Tail<T>& tail) const {
    T* to = out_row(row) + column;
    store(to, load(to, tail) + sum, tail);
  }
};

template <typename T, typename OutRow>
SOFTWOOD_INLINE Write<T, OutRow> write_to(OutRow out_row) {
  return {out_row};
}
template <typename T, typename OutRow>
SOFTWOOD_INLINE Add<T, OutRow> add_to(OutRow out_row) {
  return {out_row};
}

}  // namespace softwood::SOFTWOOD_ISA

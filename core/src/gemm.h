// The one matrix product that all dense work is made of:
//
//     out[r][c] (= or +=) sum over i of a[r][i * a_step] * b[i * b_stride + c]
//
// Rows of `a` and `out` are found by functions of r, so that they may lie anywhere; `a` is read value by value and
// broadcast, `b` and `out` by vectors along c. The tile of sums stays in registers.
#pragma once

#include "simd.h"

namespace softwood::SOFTWOOD_ISA {

// Rows and vectors of a register tile: enough independent sums to hide the latency of multiply-add, and few enough for the
// registers (16 vectors up to AVX2, 32 from AVX-512 on).
inline constexpr int kTileHeight = kVectorBytes == 64 ? 8 : 6;
inline constexpr int kTileVectors = 2;

enum class Write { set, add };

template <typename T, int R, int C, bool kHasTail, Write kWrite>
SOFTWOOD_INLINE void gemm_tile(const T* const (&a)[R], std::int64_t a_step, const T* b, std::int64_t b_stride,
                               std::int64_t n_terms, const T* start, T* const (&out)[R], const Tail<T>& tail) {
  constexpr int W = kLanes<T>;
  Vector<T> sums[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int c = 0; c < C; ++c) sums[r][c] = start != nullptr ? broadcast<T>(start[r]) : Vector<T>{};
  }
  for (std::int64_t i = 0; i < n_terms; ++i) {
    Vector<T> columns[C];
#pragma GCC unroll 2
    for (int c = 0; c < C; ++c) {
      columns[c] = kHasTail && c == C - 1 ? load(b + c * W, tail) : load(b + c * W);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const T factor = a[r][i * a_step];
#pragma GCC unroll 2
      for (int c = 0; c < C; ++c) sums[r][c] += factor * columns[c];
    }
    b += b_stride;
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int c = 0; c < C; ++c) {
      T* to = out[r] + c * W;
      if (kHasTail && c == C - 1) {
        store(to, kWrite == Write::add ? sums[r][c] + load(to, tail) : sums[r][c], tail);
      } else {
        store(to, kWrite == Write::add ? sums[r][c] + load(to) : sums[r][c]);
      }
    }
  }
}

// All rows of one column of tiles. `a_row(r)`, `out_row(r)` give pointers, `start` the values to begin the sums with
// (by row; null: zeros).
template <typename T, int C, bool kHasTail, Write kWrite, int R = kTileHeight, typename ARow, typename OutRow>
SOFTWOOD_INLINE void gemm_column(std::int64_t row_begin, std::int64_t n_rows, const ARow& a_row, std::int64_t a_step,
                                 const T* b, std::int64_t b_stride, std::int64_t n_terms, const T* start,
                                 const OutRow& out_row, std::int64_t column, const Tail<T>& tail) {
  while (row_begin + R <= n_rows) {
    const T* a[R];
    T* out[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      a[r] = a_row(row_begin + r);
      out[r] = out_row(row_begin + r) + column;
    }
    gemm_tile<T, R, C, kHasTail, kWrite>(a, a_step, b, b_stride, n_terms, start == nullptr ? nullptr : start + row_begin,
                                         out, tail);
    row_begin += R;
  }
  if constexpr (R > 1) {
    if (row_begin < n_rows) {
      gemm_column<T, C, kHasTail, kWrite, R - 1>(row_begin, n_rows, a_row, a_step, b, b_stride, n_terms, start, out_row,
                                                 column, tail);
    }
  }
}

template <typename T, Write kWrite, typename ARow, typename OutRow>
inline void gemm(std::int64_t n_rows, std::int64_t n_columns, std::int64_t n_terms, const ARow& a_row, std::int64_t a_step,
                 const T* b, std::int64_t b_stride, const OutRow& out_row) {
  constexpr int W = kLanes<T>, C = kTileVectors;
  const Tail<T> tail(n_columns % W);
  std::int64_t column = 0;
  for (; column + C * W <= n_columns; column += C * W) {
    gemm_column<T, C, false, kWrite>(0, n_rows, a_row, a_step, b + column, b_stride, n_terms, nullptr, out_row, column, tail);
  }
  const std::int64_t rest = n_columns - column;
  if (rest > W) {
    gemm_column<T, 2, true, kWrite>(0, n_rows, a_row, a_step, b + column, b_stride, n_terms, nullptr, out_row, column, tail);
  } else if (rest == W) {
    gemm_column<T, 1, false, kWrite>(0, n_rows, a_row, a_step, b + column, b_stride, n_terms, nullptr, out_row, column, tail);
  } else if (rest > 0) {
    gemm_column<T, 1, true, kWrite>(0, n_rows, a_row, a_step, b + column, b_stride, n_terms, nullptr, out_row, column, tail);
  }
}

}  // namespace softwood::SOFTWOOD_ISA

// gemm.h: against three loops, for all sizes of the last tile, with gaps between rows.
#include "run.h"  // first

#include "gemm.h"

using namespace softwood::SOFTWOOD_ISA;

template <typename T>
static void equals_three_loops(std::int64_t n_rows, std::int64_t n_columns, std::int64_t n_terms, bool transposed,
                               bool add) {
  const auto at = [](std::vector<T>& values, std::int64_t i) -> T& { return values[static_cast<std::size_t>(i)]; };
  const std::int64_t a_step = transposed ? n_rows : 1, a_stride = transposed ? 1 : n_terms;
  const std::int64_t b_stride = n_columns + 3, out_stride = n_columns + 5;
  std::vector<T> a(static_cast<std::size_t>(n_rows * n_terms)), b(static_cast<std::size_t>(n_terms * b_stride));
  std::vector<T> out(static_cast<std::size_t>(n_rows * out_stride), T(7)), want = out;
  // Small integers: sums are exact, whatever their order.
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = T(int(i * 7 % 11) - 5);
  for (std::size_t i = 0; i < b.size(); ++i) b[i] = T(int(i * 5 % 13) - 6);
  for (std::int64_t r = 0; r < n_rows; ++r) {
    for (std::int64_t c = 0; c < n_columns; ++c) {
      T sum = add ? at(want, r * out_stride + c) : T(0);
      for (std::int64_t i = 0; i < n_terms; ++i) sum += at(a, r * a_stride + i * a_step) * at(b, i * b_stride + c);
      at(want, r * out_stride + c) = sum;
    }
  }
  const auto a_row = [&](std::int64_t r) { return a.data() + r * a_stride; };
  const auto out_row = [&](std::int64_t r) { return out.data() + r * out_stride; };
  if (add) {
    gemm<T>(n_rows, n_columns, n_terms, a_row, a_step, Strided<T>{b.data(), b_stride}, add_to<T>(out_row));
  } else {
    gemm<T>(n_rows, n_columns, n_terms, a_row, a_step, Strided<T>{b.data(), b_stride}, write_to<T>(out_row));
  }
  CHECK(out == want);  // including the gaps between rows
}

template <typename T>
static void all() {
  for (std::int64_t n_columns = 1; n_columns <= 4 * kTileVectors * kLanes<T> + 1; ++n_columns) {
    for (std::int64_t n_rows : {1, 2, 3, 5, 6, 7, 8, 9, 13, 17}) {
      equals_three_loops<T>(n_rows, n_columns, 5, false, false);
      equals_three_loops<T>(n_rows, n_columns, 3, true, true);
    }
  }
  equals_three_loops<T>(4, 30, 0, false, false);
}

int main() {
  return run_if_supported([] {
    all<float>();
    all<double>();
  });
}

// The kernels of one instruction set; compiled once for each (see CMakeLists.txt).
#include "kernels.h"

#include "backward.h"
#include "forward.h"

namespace softwood::SOFTWOOD_ISA {
namespace {

template <typename T>
void arrange(const Rows<T>& x, std::int64_t n_features, T* rows, T* panels) {
  constexpr int W = kLanes<T>;
  const std::int64_t padded = (n_features + W - 1) / W * W;
  const std::int64_t whole = n_features / W * W;
  const Tail<T> tail(n_features - whole);
  for (std::int64_t i = 0; i < x.n_rows; ++i) {
    const T* from = x.row(i);
    T* to = rows + i * padded;
    for (std::int64_t f = 0; f < whole; f += W) store(to + f, load(from + f));
    if (whole < n_features) store(to + whole, load(from + whole, tail));
  }
  if (panels == nullptr) return;
  for (std::int64_t begin = 0; begin < x.n_rows; begin += kPanelRows<T>, panels += kPanelRows<T> * n_features) {
    const T* from = rows + begin * padded;
    const std::int64_t n_rows = x.n_rows - begin;
    if (n_rows >= kPanelRows<T>) {
      for (std::int64_t f = 0; f < n_features; f += W) {
        const int n_columns = n_features - f < W ? int(n_features - f) : W;
        for (int i = 0; i < kPanelRows<T>; i += W) {
          Vector<T> square[W];
#pragma GCC unroll 16
          for (int r = 0; r < W; ++r) square[r] = load(from + (i + r) * padded + f);
          transpose<T>(square);
#pragma GCC unroll 16
          for (int c = 0; c < W; ++c) {
            if (c < n_columns) store(panels + (f + c) * kPanelRows<T> + i, square[c]);
          }
        }
      }
    } else {
      for (std::int64_t f = 0; f < n_features; ++f) {
        for (int i = 0; i < kPanelRows<T>; ++i)
          panels[f * kPanelRows<T> + i] = i < n_rows ? from[i * padded + f] : T(0);
      }
    }
  }
}

template <typename T>
const Frontier<T>* forward(const Unit<T>& unit, T* output, const Counts* counts, Arena* keep, Arena& scratch) {
  const FlushSubnormals flush;
  const ArenaScope scope(scratch);
  return Forward<T>(unit, output, counts, keep, scratch).run();
}

template <typename T>
void backward(const Unit<T>& unit, const Frontier<T>* tape, const T* grad_output, std::int64_t grad_stride,
              const Gradients<T>& gradients, Arena& scratch) {
  const FlushSubnormals flush;
  const ArenaScope scope(scratch);
  Backward<T>(unit, grad_output, grad_stride, gradients, scratch).run(tape);
}

#define SOFTWOOD_STRING_(name) #name
#define SOFTWOOD_STRING(name) SOFTWOOD_STRING_(name)

template <typename T>
constexpr Kernels<T> table() {
  return {SOFTWOOD_STRING(SOFTWOOD_ISA), kLanes<T>, kPanelRows<T>, &arrange<T>, &forward<T>, &backward<T>};
}

}  // namespace

extern const Kernels<float> kernels_float = table<float>();
extern const Kernels<double> kernels_double = table<double>();

}  // namespace softwood::SOFTWOOD_ISA

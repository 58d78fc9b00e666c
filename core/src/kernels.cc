// The kernels of one instruction set; compiled once for each (see CMakeLists.txt).
#include "kernels.h"

#include "backward.h"
#include "forward.h"

namespace softwood::SOFTWOOD_ISA {
namespace {

template <typename T>
void transpose(const Rows<T>& x, std::int64_t n_features, T* tiles) {
  constexpr int kTileRows = kTileVectors * kLanes<T>;
  for (std::int64_t begin = 0; begin < x.n_rows; begin += kTileRows, tiles += kTileRows * n_features) {
    const std::int64_t n_rows = x.n_rows - begin < kTileRows ? x.n_rows - begin : kTileRows;
    for (std::int64_t f = 0; f < n_features; ++f) {
      for (std::int64_t i = 0; i < kTileRows; ++i) tiles[f * kTileRows + i] = i < n_rows ? x.row(begin + i)[f] : T(0);
    }
  }
}

template <typename T>
const Frontier<T>* forward(const Unit<T>& unit, T* output, const Counts* counts, Arena* keep, Arena& scratch) {
  const FlushSubnormals flush;
  const Arena::Mark mark = scratch.mark();
  const Frontier<T>* root = Forward<T>(unit, output, counts, keep, scratch).run();
  scratch.release(mark);
  return root;
}

template <typename T>
void backward(const Unit<T>& unit, const Frontier<T>* tape, const T* grad_output, std::int64_t grad_stride,
              const Gradients<T>& gradients, Arena& scratch) {
  const FlushSubnormals flush;
  const Arena::Mark mark = scratch.mark();
  Backward<T>(unit, grad_output, grad_stride, gradients, scratch).run(tape);
  scratch.release(mark);
}

#define SOFTWOOD_STRING_(name) #name
#define SOFTWOOD_STRING(name) SOFTWOOD_STRING_(name)

template <typename T>
constexpr Kernels<T> table() {
  return {SOFTWOOD_STRING(SOFTWOOD_ISA), kTileVectors * kLanes<T>, &transpose<T>, &forward<T>, &backward<T>};
}

}  // namespace

extern const Kernels<float> kernels_float = table<float>();
extern const Kernels<double> kernels_double = table<double>();

}  // namespace softwood::SOFTWOOD_ISA

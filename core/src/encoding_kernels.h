// The encoding of one row, compiled for the baseline and for AVX2; see softwood/encoding.h. Nothing here is fused or
// reordered: features are the same to the bit on every instruction set.
#pragma once

#include <cstdint>

namespace softwood {

// The arrays of an Encoding, and where the features of each kind begin.
struct EncodingView {
  const std::int32_t* source;
  const float* start;
  const float* rate;
  const float* mean;
  const float* scale;
  const float* bound;
  const std::int64_t* begin;  // [kFeatureKinds + 1]
  bool in_order;
};

struct EncodingKernels {
  void (*encode_floats)(const EncodingView& encoding, const float* base, float* features);
  void (*encode_doubles)(const EncodingView& encoding, const double* base, double* features);
  bool (*floats_are_finite)(const float* row, std::int64_t n);  // but for NaN
  bool (*doubles_are_finite)(const double* row, std::int64_t n);
};

const EncodingKernels& encoding_kernels();

namespace baseline {
extern const EncodingKernels encoding_kernels;
}
#if defined(__x86_64__)
namespace avx2 {
extern const EncodingKernels encoding_kernels;
}
#endif

// All of them, from the narrowest to the widest.
inline constexpr const EncodingKernels* kEncodingKernels[] = {
    &baseline::encoding_kernels,
#if defined(__x86_64__)
    &avx2::encoding_kernels,
#endif
};

}  // namespace softwood

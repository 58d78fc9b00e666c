// The encoding of one row, compiled for the baseline and for AVX2; see softwood/encoding.h. No operation is fused or
// reordered: features are bit-identical on every instruction set.
#pragma once

#include <cstdint>

#include "dispatch.h"
#include "softwood/encoding.h"

namespace softwood {

struct EncodingKernels {
  void (*encode_floats)(const Encoding& encoding, const float* base, float* features);
  void (*encode_doubles)(const Encoding& encoding, const double* base, double* features);
  bool (*floats_are_finite)(const float* row, std::int64_t n);  // apart from NaN
  bool (*doubles_are_finite)(const double* row, std::int64_t n);
};

// encoding_kernels() gives those for this machine.
SOFTWOOD_DECLARE_NARROW_TABLE(EncodingKernels, encoding_kernels)

}  // namespace softwood

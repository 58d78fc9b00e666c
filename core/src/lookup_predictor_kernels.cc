// The forward pass without contraction: the order of every sum and each rounding is the same on every machine.
#include "lookup_forward.h"

namespace softwood::SOFTWOOD_ISA {

extern const LookupKernels lookup_predictor_kernels = kForwardKernels;

}  // namespace softwood::SOFTWOOD_ISA

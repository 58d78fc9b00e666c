// Which compilation of a piece of code this process runs: the widest that the CPU has, or a narrower one named by
// SOFTWOOD_ISA.
#pragma once

#include <algorithm>
#include <cstddef>

namespace softwood {

// 0 for the baseline, 1 for AVX2, 2 for AVX-512.
std::size_t instruction_set_rank();

// That of the given compilations, from the narrowest to the widest there is.
template <typename Kernels, std::size_t n>
const Kernels& chosen(const Kernels* const (&compiled)[n]) {
  return *compiled[std::min(instruction_set_rank(), n - 1)];
}

}  // namespace softwood

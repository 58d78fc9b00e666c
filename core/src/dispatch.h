// Which compilation of a piece of code this process runs: the widest that the CPU supports, or a narrower one named by
// the environment variable SOFTWOOD_ISA. CMakeLists.txt defines SOFTWOOD_HAVE_AVX2 and SOFTWOOD_HAVE_AVX512 if it
// compiles the kernels for them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <type_traits>

namespace softwood {

// 0 for the baseline, 1 for AVX2, 2 for AVX-512.
std::size_t instruction_set_rank();

// That table of the given ones, which go from the narrowest to the widest there is.
template <typename Table, std::size_t n>
const Table& chosen(const Table* const (&compiled)[n]) {
  return *compiled[std::min(instruction_set_rank(), n - 1)];
}

// The same for tables of functions on T, float or double.
template <typename T, typename Floats, typename Doubles>
const auto& chosen_for(const Floats& floats, const Doubles& doubles) {
  if constexpr (std::is_same_v<T, float>) {
    return chosen(floats);
  } else {
    return chosen(doubles);
  }
}

}  // namespace softwood

// A table of functions that each instruction set defines in its own namespace as `extern const Table name`.
// `softwood::compiled_<name>` lists them from the narrowest to the widest. SOFTWOOD_DECLARE_NARROW_TABLE is for tables
// that no set wider than AVX2 defines.
#define SOFTWOOD_DECLARE_IN(isa, Table, name) \
  namespace isa {                             \
  extern const Table name;                    \
  }
#if defined(SOFTWOOD_HAVE_AVX2)
#define SOFTWOOD_DECLARE_NARROW_TABLE(Table, name) \
  SOFTWOOD_DECLARE_IN(baseline, Table, name)       \
  SOFTWOOD_DECLARE_IN(avx2, Table, name)           \
  inline constexpr const Table* compiled_##name[] = {&baseline::name, &avx2::name};
#else
#define SOFTWOOD_DECLARE_NARROW_TABLE(Table, name) \
  SOFTWOOD_DECLARE_IN(baseline, Table, name)       \
  inline constexpr const Table* compiled_##name[] = {&baseline::name};
#endif
#if defined(SOFTWOOD_HAVE_AVX512)
#define SOFTWOOD_DECLARE_TABLE(Table, name)  \
  SOFTWOOD_DECLARE_IN(baseline, Table, name) \
  SOFTWOOD_DECLARE_IN(avx2, Table, name)     \
  SOFTWOOD_DECLARE_IN(avx512, Table, name)   \
  inline constexpr const Table* compiled_##name[] = {&baseline::name, &avx2::name, &avx512::name};
#else
#define SOFTWOOD_DECLARE_TABLE SOFTWOOD_DECLARE_NARROW_TABLE
#endif

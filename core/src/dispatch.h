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

}  // namespace softwood

// A table of functions that each instruction set defines in its own namespace as `extern const Table name`. The
// function name() gives the one for this machine. SOFTWOOD_DECLARE_NARROW_TABLE is for tables that no set wider than
// AVX2 defines; SOFTWOOD_DECLARE_TABLES for tables of functions on float and double, `name_float` and `name_double`, of
// which name<T>() gives one.
#define SOFTWOOD_DECLARE_IN(isa, Table, name) \
  namespace isa {                             \
  extern const Table name;                    \
  }
#if defined(SOFTWOOD_HAVE_AVX2)
#define SOFTWOOD_DECLARE_NARROW_TABLE(Table, name)                                  \
  SOFTWOOD_DECLARE_IN(baseline, Table, name)                                        \
  SOFTWOOD_DECLARE_IN(avx2, Table, name)                                            \
  inline constexpr const Table* compiled_##name[] = {&baseline::name, &avx2::name}; \
  inline const Table& name() { return chosen(compiled_##name); }
#else
#define SOFTWOOD_DECLARE_NARROW_TABLE(Table, name)                     \
  SOFTWOOD_DECLARE_IN(baseline, Table, name)                           \
  inline constexpr const Table* compiled_##name[] = {&baseline::name}; \
  inline const Table& name() { return chosen(compiled_##name); }
#endif
#if defined(SOFTWOOD_HAVE_AVX512)
#define SOFTWOOD_DECLARE_TABLE(Table, name)                                                        \
  SOFTWOOD_DECLARE_IN(baseline, Table, name)                                                       \
  SOFTWOOD_DECLARE_IN(avx2, Table, name)                                                           \
  SOFTWOOD_DECLARE_IN(avx512, Table, name)                                                         \
  inline constexpr const Table* compiled_##name[] = {&baseline::name, &avx2::name, &avx512::name}; \
  inline const Table& name() { return chosen(compiled_##name); }
#else
#define SOFTWOOD_DECLARE_TABLE SOFTWOOD_DECLARE_NARROW_TABLE
#endif
#define SOFTWOOD_DECLARE_TABLES(Table, name)           \
  SOFTWOOD_DECLARE_TABLE(Table<float>, name##_float)   \
  SOFTWOOD_DECLARE_TABLE(Table<double>, name##_double) \
  template <typename T>                                \
  const Table<T>& name() {                             \
    if constexpr (std::is_same_v<T, float>) {          \
      return name##_float();                           \
    } else {                                           \
      return name##_double();                          \
    }                                                  \
  }

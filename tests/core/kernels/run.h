// For tests that are compiled once per instruction set; to be included before the header under test. The program exits
// with 77 ("skipped") if the machine lacks the set.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "../check.h"
#include "softwood/ensemble.h"

#if defined(SOFTWOOD_TEST_portable)
#undef __x86_64__  // an unknown machine from here on; the system headers have been included
#endif

#define SOFTWOOD_TEXT_OF(name) #name
#define SOFTWOOD_TEXT(name) SOFTWOOD_TEXT_OF(name)

inline bool machine_has_instruction_set() {
#if defined(__AVX512F__)
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl");
#elif defined(__AVX2__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return true;
#endif
}

// Not part of main, which must run everywhere: a sanitizer may use any instruction at the beginning of a function.
template <typename Test>
[[gnu::noinline]] void run(const Test& test) {
  test();
}

template <typename Test>
int run_if_supported(const Test& test) {
  std::printf("%s\n", SOFTWOOD_TEXT(SOFTWOOD_ISA));
  if (!machine_has_instruction_set()) return 77;
  run(test);
  return softwood::testing::report();
}

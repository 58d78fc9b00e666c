// The main function of tests that are compiled for one instruction set: 77 ("skipped") where the machine lacks it.
#pragma once

#include "../check.h"

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

template <typename Test>
int run_if_supported(const Test& test) {
  std::printf("%s\n", SOFTWOOD_TEXT(SOFTWOOD_ISA));
  if (!machine_has_instruction_set()) return 77;
  test();
  return softwood::testing::report();
}

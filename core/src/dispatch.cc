#include "dispatch.h"

#include <cstdlib>
#include <string_view>

#include "kernels.h"

namespace softwood {
namespace {

std::size_t choose() {
#if defined(SOFTWOOD_HAVE_AVX2)
  const char* forced = std::getenv("SOFTWOOD_ISA");
  const std::string_view limit = forced == nullptr ? "" : forced;
  __builtin_cpu_init();
  const bool has_avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                          __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  if (has_avx512 && limit != "avx2" && limit != "baseline") return 2;
  if (has_avx2 && limit != "baseline") return 1;
#endif
  return 0;
}

}  // namespace

std::size_t instruction_set_rank() {
  static const std::size_t rank = choose();
  return rank;
}

const char* instruction_set() { return kernels<float>().name; }

}  // namespace softwood

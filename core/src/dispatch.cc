// Which kernels this process uses: the widest that the CPU has, or a narrower set named by SOFTWOOD_ISA.
#include <cstdlib>
#include <string_view>

#include "kernels.h"

namespace softwood {
namespace {

struct Choice {
  const Kernels<float>* single;
  const Kernels<double>* dual;
};

Choice choose() {
#if defined(__x86_64__)
  const char* forced = std::getenv("SOFTWOOD_ISA");
  const std::string_view limit = forced == nullptr ? "" : forced;
  __builtin_cpu_init();
  const bool has_avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                          __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  if (has_avx512 && limit != "avx2" && limit != "baseline") return {&avx512::kernels_float, &avx512::kernels_double};
  if (has_avx2 && limit != "baseline") return {&avx2::kernels_float, &avx2::kernels_double};
#endif
  return {&baseline::kernels_float, &baseline::kernels_double};
}

const Choice& choice() {
  static const Choice chosen = choose();
  return chosen;
}

}  // namespace

template <>
const Kernels<float>& kernels<float>() {
  return *choice().single;
}
template <>
const Kernels<double>& kernels<double>() {
  return *choice().dual;
}

const char* instruction_set() { return choice().single->name; }

}  // namespace softwood

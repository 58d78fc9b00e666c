#include "dispatch.h"

#include <cstdlib>
#include <string_view>

#include "encoding_kernels.h"
#include "kernels.h"
#include "lookup_kernels.h"
#include "predictor_kernels.h"
#include "training_kernels.h"

namespace softwood {
namespace {

std::size_t choose() {
#if defined(__x86_64__)
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

template <>
const Kernels<float>& kernels<float>() {
  return chosen(kKernelsFloat);
}
template <>
const Kernels<double>& kernels<double>() {
  return chosen(kKernelsDouble);
}
template <>
const TrainingKernels<float>& training_kernels<float>() {
  return chosen(kTrainingKernelsFloat);
}
template <>
const TrainingKernels<double>& training_kernels<double>() {
  return chosen(kTrainingKernelsDouble);
}
const EncodingKernels& encoding_kernels() { return chosen(kEncodingKernels); }
const LookupTrainingKernels& lookup_training_kernels() { return chosen(kLookupTrainingKernels); }
const LookupKernels& lookup_predictor_kernels() { return chosen(kLookupPredictorKernels); }
const PredictorKernels& predictor_kernels() { return chosen(kPredictorKernels); }

}  // namespace softwood

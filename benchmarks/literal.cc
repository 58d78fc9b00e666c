// literal.h with a C interface, for ctypes. benchmarks/rivals.py compiles it.
#include "literal.h"

namespace {

struct Memory {
  literal::Visits<float> visits;
};

literal::Trees<float> trees_of(const float* split_weight, const float* leaf_weight, std::int64_t m, std::int64_t p,
                               std::int64_t k, int d, float gamma) {
  return {split_weight, nullptr, leaf_weight, m, p, k, d, 0, gamma};
}

}  // namespace

extern "C" {

void* literal_memory() { return new Memory; }

void literal_forward(void* memory, const float* x, const float* split_weight, const float* leaf_weight, std::int64_t n,
                     std::int64_t m, std::int64_t p, std::int64_t k, int d, float gamma, int with_visits,
                     float* output) {
  literal::Visits<float>* visits = with_visits ? &static_cast<Memory*>(memory)->visits : nullptr;
  literal::forward(trees_of(split_weight, leaf_weight, m, p, k, d, gamma), x, n, output, visits);
}

void literal_backward(void* memory, const float* x, const float* split_weight, const float* leaf_weight, std::int64_t n,
                      std::int64_t m, std::int64_t p, std::int64_t k, int d, float gamma, const float* grad_output,
                      float* grad_x, float* grad_split, float* grad_leaf) {
  literal::backward(trees_of(split_weight, leaf_weight, m, p, k, d, gamma), x, n, grad_output,
                    static_cast<Memory*>(memory)->visits, grad_x, grad_split, static_cast<float*>(nullptr), grad_leaf);
}

}  // extern "C"

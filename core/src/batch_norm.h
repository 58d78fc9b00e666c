// Normalisation of a batch before the trees: (x - mean) / sqrt(variance + epsilon) * scale + shift.
#pragma once

#include <cstdint>
#include <vector>

#include "softwood/trainer.h"
#include "training_kernels.h"

namespace softwood {

template <typename T>
class BatchNorm {
 public:
  BatchNorm(Normalisation kind, std::int64_t n_features, double epsilon, const Parameters<T>& parameters);

  // Normalises [n, p] for a step, by the batch's own statistics or the training set's. Without normalisation it returns
  // `x`, else `out`, which it writes.
  const T* training(const T* x, std::int64_t n, T* out);
  // The same for evaluation: always by the training set's statistics, with the parameters that evaluation uses.
  const T* evaluation(const T* x, std::int64_t n, T* out);

  // Whether some scale is so near 0 that its gradient cannot be had by dividing by it.
  bool needs_input_gradient() const;
  // The scale's gradient [p] from that of the trees' inputs, for the batch last given to `training`. Valid until next
  // call.
  const T* scale_gradient(const T* x, std::int64_t n, const T* input_gradient);

 private:
  void set_statistics(const T* mean, const T* variance);
  const T* apply(const T* x, std::int64_t n, const T* scale, const T* shift, T* out);

  Normalisation kind_;
  std::int64_t n_features_;
  T epsilon_;
  const Parameters<T>& parameters_;
  std::vector<T> mean_, variance_, inverse_deviation_, factor_, scale_gradient_;
};

}  // namespace softwood

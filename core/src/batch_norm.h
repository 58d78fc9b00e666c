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

  // Normalises x [n, p] for a step, by the statistics of the batch or of the training set, and returns `out`; without
  // normalisation returns `x`.
  const T* training(const T* x, std::int64_t n, T* out);
  // The same for evaluation: always by the statistics of the training set, with the parameters for evaluation.
  const T* evaluation(const T* x, std::int64_t n, T* out);

  // Whether some scale is so close to 0 that its gradient cannot be computed by dividing by it.
  bool needs_input_gradient() const;
  // The gradient of the scale [p] from that of the inputs of the trees, for the last batch given to `training`. Valid
  // until the next call.
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

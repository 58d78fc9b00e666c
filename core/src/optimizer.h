// Adam on the parameters of one member, tree by tree, and the gradients it consumes.
#pragma once

#include <cstdint>
#include <vector>

#include "softwood/trainer.h"
#include "training_kernels.h"

namespace softwood {

// Adam's coefficients for step number `step`, counted from 1.
template <typename T>
AdamStep<T> adam_coefficients(const AdamSettings& adam, std::int64_t step, double learning_rate, double l1, double l2,
                              double weight_decay);

template <typename T>
class Optimizer {
 public:
  Optimizer(const MemberSettings<T>& settings, const Parameters<T>& parameters);

  // Where the backward pass adds its gradients; zero between two steps. `x` is null.
  Gradients<T> gradients();

  // One step from the gradients, which it sets to zero. `step` counts from 1. `scale_gradient` [p], if not null,
  // replaces the gradient of the scale of batch normalisation, which is otherwise derived from those of the split
  // weights.
  void update(std::int64_t step, double learning_rate, const T* scale_gradient, int n_threads);

  // Writes the averages to where evaluation reads them; does nothing without averaging.
  void read_averages(std::int64_t step) const;

 private:
  struct AdamSteps {
    AdamStep<T> split_weight, leaf_weight, plain;  // plain: without penalties
  };
  TreeUpdate<T> tree_update(std::int64_t tree, std::int64_t step, const AdamSteps& adam);
  void update_affine(const AdamStep<T>& adam, const T* scale_gradient);

  const MemberSettings<T>& settings_;
  const Parameters<T> parameters_;
  const TrainingKernels<T>& kernels_;
  std::int64_t n_splits_, n_leaves_;
  std::vector<T> split_weight_gradient_, split_bias_gradient_, leaf_weight_gradient_;
  std::vector<std::uint8_t> split_marked_, leaf_marked_;
  std::vector<T> affine_sums_;      // [m, 2, p]: two sums per tree, added in the order of trees
  std::vector<T> affine_gradient_;  // [2, p]: of scale, of shift
};

}  // namespace softwood

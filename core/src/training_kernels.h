// The element-wise loops of a training step, compiled once per instruction set like the kernels of the trees. They use
// no threads.
#pragma once

#include <cstdint>

#include "dispatch.h"
#include "softwood/trainer.h"

namespace softwood {

// Adam's coefficients of one step for one parameter.
template <typename T>
struct AdamStep {
  T step_size;  // learning rate divided by the first moment's bias correction
  T one_minus_beta1;
  T beta2, one_minus_beta2;
  T inverse_sqrt_bias;  // of the second moment
  T epsilon;
  T l2;
  T keep;       // 1 - learning rate * weight decay
  T threshold;  // learning rate * l1
  T average_decay;
};

// Elements of a parameter with their gradients, which are set to zero after use. `average` may be null.
template <typename T>
struct Elements {
  T* value;
  T* gradient;
  T* first_moment;
  T* second_moment;
  T* average;

  Elements from(std::int64_t i) const {
    return {value + i, gradient + i, first_moment + i, second_moment + i, average != nullptr ? average + i : nullptr};
  }
};

// A step of the optimiser for one tree. Removes the marks.
template <typename T>
struct TreeUpdate {
  std::int64_t n_splits, n_features, n_outputs;
  Updates updates;
  std::int64_t step;  // counted from 1
  AdamStep<T> split_weight_step, split_bias_step, leaf_weight_step;
  Elements<T> split_weight;  // [n_splits, n_features]
  Elements<T> split_bias;    // [n_splits]; without biases `value` is null, but `gradient` is not
  Elements<T> leaf_weight;   // [n_splits + 1, n_outputs]
  std::uint8_t* split_marked;
  std::uint8_t* leaf_marked;
  std::int64_t* split_step;  // see Parameters; null without averaging
  std::int64_t* leaf_step;
  // [n_features] each, or null: the sums over splits i of w_i * (bias gradient of i) and of w_i * (gradient of w_i),
  // with the weights before the update.
  T* weight_bias_sum;
  T* weight_gradient_sum;
};

template <typename T>
struct TrainingKernels {
  void (*update_tree)(const TreeUpdate<T>& update);

  // `n` elements of a parameter that has a gradient in every step.
  void (*update)(const AdamStep<T>& step, const Elements<T>& elements, std::int64_t n);

  // evaluated = the average of `value` up to `step`; `average` of a row is written up to its `row_step` (null: `step`).
  void (*read_average)(const Parameter<T>& parameter, std::int64_t n_rows, std::int64_t n_columns,
                       const std::int64_t* row_step, std::int64_t step, double decay);

  // Mean and population variance of each column of x [n, p].
  void (*column_moments)(const T* x, std::int64_t n, std::int64_t p, T* mean, T* variance);

  // out = (x - mean) * factor + shift, column by column; out may be x.
  void (*normalise)(const T* x, std::int64_t n, std::int64_t p, const T* mean, const T* factor, const T* shift, T* out);
};

// training_kernels<T>() gives those for this machine.
SOFTWOOD_DECLARE_TABLES(TrainingKernels, training_kernels)

}  // namespace softwood

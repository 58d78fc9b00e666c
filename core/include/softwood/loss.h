// Losses of the trainer: value and gradient with respect to the raw scores of a batch.
//
// Legend: n rows, k outputs (raw scores), t targets. Each loss is a weighted sum over rows of the loss of a row, which
// is a mean over outputs (for the softmax: one number per row).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace softwood {

enum class LossKind : int {
  cross_entropy = 0,         // softmax over k classes; one target per row, its class number, or k: shares of classes
  binary_cross_entropy = 1,  // one logit per target
  squared_error = 2,
  absolute_error = 3,
  huber = 4,     // half the square up to delta, linear beyond
  quantile = 5,  // k = t * number of quantiles, those of one target adjacent
  poisson = 6,   // here and below, the score is the logarithm of the mean
  gamma = 7,
  tweedie = 8,  // variance proportional to mean^power, 1 < power < 2
  custom = 9,
};

// A loss of the caller: writes the gradient [n, k] unless it is null, and returns the mean loss of the rows (NaN if it
// is unknown). `weight` is never null. May throw.
template <typename T>
using CustomLoss =
    std::function<double(const T* scores, const T* targets, const T* weight, std::int64_t n_rows, T* gradient)>;

template <typename T>
struct Loss {
  LossKind kind;
  std::int64_t n_outputs;
  std::int64_t n_targets;
  T label_smoothing = 0;  // share of the target that all classes get evenly; cross-entropies only
  T delta = 1;
  T power = T(1.5);
  std::vector<T> quantiles = {};
  CustomLoss<T> custom = {};

  // Returns the sum over rows of weight * loss of the row, in row order. `weight` null means 1 for each row. `gradient`
  // [n, k], unless null, gets the gradient of that sum times `gradient_scale`. For a custom loss, value and gradient
  // are those of the callable, unscaled. Throws std::out_of_range if a class number is not below k.
  double evaluate(const T* scores, const T* targets, const T* weight, std::int64_t n_rows, T gradient_scale,
                  T* gradient) const;
};

}  // namespace softwood

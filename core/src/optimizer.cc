// Gradients of batch normalisation without dL/dx. With x' = scale * z + shift the inputs of the trees and c_i the
// gradient of the bias of split i, the gradient of shift is sum_i w_i c_i, and that of scale is sum_i w_i (dw_i - shift
// c_i) / scale.
#include "optimizer.h"

#include <algorithm>
#include <cmath>

#include "softwood/thread_pool.h"

namespace softwood {
namespace {

// With fewer elements a step of the optimiser takes less time than waking a thread.
constexpr std::int64_t kElementsWorthThreads = 1 << 16;

}  // namespace

template <typename T>
Optimizer<T>::Optimizer(const MemberSettings<T>& settings, const Parameters<T>& parameters)
    : settings_(settings),
      parameters_(parameters),
      kernels_(training_kernels<T>()),
      n_splits_((std::int64_t{1} << settings.depth) - 1),
      n_leaves_(n_splits_ + 1),
      split_weight_gradient_(settings.n_trees * n_splits_ * settings.n_features),
      split_bias_gradient_(settings.n_trees * n_splits_),
      leaf_weight_gradient_(settings.n_trees * n_leaves_ * settings.loss.n_outputs),
      split_marked_(settings.n_trees * n_splits_),
      leaf_marked_(settings.n_trees * n_leaves_) {
  if (settings.normalisation != Normalisation::none) {
    affine_sums_.resize(2 * settings.n_trees * settings.n_features);
    affine_gradient_.resize(2 * settings.n_features);
  }
}

template <typename T>
Gradients<T> Optimizer<T>::gradients() {
  return {nullptr,
          split_weight_gradient_.data(),
          split_bias_gradient_.data(),
          leaf_weight_gradient_.data(),
          split_marked_.data(),
          leaf_marked_.data()};
}

template <typename T>
AdamStep<T> adam_coefficients(const AdamSettings& adam, std::int64_t step, double learning_rate, double l1, double l2,
                              double weight_decay) {
  const double bias1 = 1 - std::pow(adam.beta1, double(step)), bias2 = 1 - std::pow(adam.beta2, double(step));
  return {T(learning_rate / bias1), T(1 - adam.beta1),    T(adam.beta2), T(1 - adam.beta2),
          T(1 / std::sqrt(bias2)),  T(adam.epsilon),      T(l2),         T(1 - learning_rate * weight_decay),
          T(learning_rate * l1),    T(adam.average_decay)};
}

template <typename T>
TreeUpdate<T> Optimizer<T>::tree_update(std::int64_t tree, std::int64_t step, const AdamSteps& adam) {
  const std::int64_t p = settings_.n_features, k = settings_.loss.n_outputs;
  const std::int64_t first_split = tree * n_splits_, first_leaf = tree * n_leaves_;
  const auto elements = [](const Parameter<T>& parameter, std::vector<T>& gradient, std::int64_t first) {
    const auto from = [first](T* array) { return array != nullptr ? array + first : nullptr; };
    return Elements<T>{from(parameter.value), gradient.data() + first, from(parameter.first_moment),
                       from(parameter.second_moment), from(parameter.average)};
  };
  const bool averaging = parameters_.split_step != nullptr, affine = !affine_sums_.empty();
  return {.n_splits = n_splits_,
          .n_features = p,
          .n_outputs = k,
          .updates = settings_.adam.updates,
          .step = step,
          .split_weight_step = adam.split_weight,
          .split_bias_step = adam.plain,
          .leaf_weight_step = adam.leaf_weight,
          .split_weight = elements(parameters_.split_weight, split_weight_gradient_, first_split * p),
          .split_bias = elements(parameters_.split_bias, split_bias_gradient_, first_split),
          .leaf_weight = elements(parameters_.leaf_weight, leaf_weight_gradient_, first_leaf * k),
          .split_marked = split_marked_.data() + first_split,
          .leaf_marked = leaf_marked_.data() + first_leaf,
          .split_step = averaging ? parameters_.split_step + first_split : nullptr,
          .leaf_step = averaging ? parameters_.leaf_step + first_leaf : nullptr,
          .weight_bias_sum = affine ? affine_sums_.data() + 2 * tree * p : nullptr,
          .weight_gradient_sum = affine ? affine_sums_.data() + (2 * tree + 1) * p : nullptr};
}

template <typename T>
void Optimizer<T>::update(std::int64_t step, double learning_rate, const T* scale_gradient, int n_threads) {
  const AdamSettings& settings = settings_.adam;
  const AdamSteps adam{
      adam_coefficients<T>(settings, step, learning_rate, settings.l1, settings.l2, settings.split_weight_decay),
      adam_coefficients<T>(settings, step, learning_rate, 0, 0, settings.weight_decay),
      adam_coefficients<T>(settings, step, learning_rate, 0, 0, 0)};
  std::fill(affine_sums_.begin(), affine_sums_.end(), T(0));
  const bool worth_threads = std::int64_t(split_weight_gradient_.size()) >= kElementsWorthThreads;
  parallel_for(settings_.n_trees, worth_threads ? n_threads : 1,
               [&](std::int64_t tree) { kernels_.update_tree(tree_update(tree, step, adam)); });
  if (!affine_sums_.empty()) update_affine(adam.plain, scale_gradient);
}

template <typename T>
void Optimizer<T>::update_affine(const AdamStep<T>& adam, const T* scale_gradient) {
  const std::int64_t p = settings_.n_features;
  T* const of_scale = affine_gradient_.data();
  T* const of_shift = of_scale + p;
  std::fill(affine_gradient_.begin(), affine_gradient_.end(), T(0));
  for (std::int64_t tree = 0; tree < settings_.n_trees; ++tree) {
    const T* const sums = affine_sums_.data() + 2 * tree * p;
    for (std::int64_t f = 0; f < p; ++f) {
      of_shift[f] += sums[f];
      of_scale[f] += sums[p + f];
    }
  }
  for (std::int64_t f = 0; f < p; ++f) {
    of_scale[f] = scale_gradient != nullptr
                      ? scale_gradient[f]
                      : (of_scale[f] - parameters_.shift.value[f] * of_shift[f]) / parameters_.scale.value[f];
  }
  const auto update = [&](const Parameter<T>& parameter, T* gradient) {
    kernels_.update(adam,
                    {parameter.value, gradient, parameter.first_moment, parameter.second_moment, parameter.average}, p);
  };
  update(parameters_.scale, of_scale);
  update(parameters_.shift, of_shift);
}

template <typename T>
void Optimizer<T>::read_averages(std::int64_t step) const {
  if (parameters_.split_step == nullptr) return;
  const std::int64_t m = settings_.n_trees, p = settings_.n_features;
  const auto read = [&](const Parameter<T>& parameter, std::int64_t n_rows, std::int64_t n_columns,
                        const std::int64_t* row_step) {
    if (parameter.value == nullptr) return;
    kernels_.read_average(parameter, n_rows, n_columns, row_step, step, settings_.adam.average_decay);
  };
  read(parameters_.split_weight, m * n_splits_, p, parameters_.split_step);
  read(parameters_.split_bias, m * n_splits_, 1, parameters_.split_step);
  read(parameters_.leaf_weight, m * n_leaves_, settings_.loss.n_outputs, parameters_.leaf_step);
  read(parameters_.scale, 1, p, nullptr);
  read(parameters_.shift, 1, p, nullptr);
}

template AdamStep<float> adam_coefficients(const AdamSettings&, std::int64_t, double, double, double, double);
template AdamStep<double> adam_coefficients(const AdamSettings&, std::int64_t, double, double, double, double);
template class Optimizer<float>;
template class Optimizer<double>;

}  // namespace softwood

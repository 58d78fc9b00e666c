// Values are the usual negative log-likelihoods without the terms that do not depend on the scores; cross-entropies are
// written so that no exponential can overflow.
#include "softwood/loss.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace softwood {
namespace {

template <typename T>
struct Point {
  T value, slope;  // of one element's loss, as a function of its score
};

template <typename T>
Point<T> binary_cross_entropy(T score, T target) {
  const T e = std::exp(-std::abs(score));
  const T probability = (score >= 0 ? T(1) : e) / (1 + e);
  return {std::max(score, T(0)) - score * target + std::log1p(e), probability - target};
}

template <typename T>
Point<T> squared_error(T score, T target) {
  const T error = score - target;
  return {error * error, 2 * error};
}

template <typename T>
Point<T> absolute_error(T score, T target) {
  const T error = score - target;
  return {std::abs(error), T((error > 0) - (error < 0))};
}

template <typename T>
Point<T> huber(T score, T target, T delta) {
  const T error = score - target, size = std::abs(error);
  if (!(size > delta)) return {error * error / 2, error};
  return {delta * (size - delta / 2), std::copysign(delta, error)};
}

template <typename T>
Point<T> pinball(T score, T target, T quantile) {
  const T shortfall = target - score;
  const T slope = shortfall == 0 ? T(0) : shortfall > 0 ? -quantile : 1 - quantile;
  return {-slope * shortfall, slope};
}

template <typename T>
Point<T> poisson(T score, T target) {
  const T mean = std::exp(score);
  return {mean - target * score, mean - target};
}

template <typename T>
Point<T> gamma(T score, T target) {
  const T ratio = target * std::exp(-score);
  return {ratio + score, 1 - ratio};
}

template <typename T>
Point<T> tweedie(T score, T target, T power) {
  const T a = std::exp((1 - power) * score), b = std::exp((2 - power) * score);
  return {b / (2 - power) - target * a / (1 - power), b - target * a};
}

// `element(score, target, which)` gives the loss of output number `which` of a target; the outputs of a target are
// adjacent.
template <typename T, typename Element>
double sum_elements(const Loss<T>& loss, const T* scores, const T* targets, const T* weight, std::int64_t n_rows,
                    T gradient_scale, T* gradient, const Element& element) {
  const std::int64_t k = loss.n_outputs, t = loss.n_targets, outputs_per_target = k / t;
  double total = 0;
  for (std::int64_t i = 0; i < n_rows; ++i) {
    const T row_weight = (weight != nullptr ? weight[i] : T(1)) / T(k);
    T row_loss = 0;
    std::int64_t j = i * k;
    for (const T* target = targets + i * t; target != targets + (i + 1) * t; ++target) {
      for (std::int64_t which = 0; which < outputs_per_target; ++which, ++j) {
        const Point<T> point = element(scores[j], *target, which);
        row_loss += point.value;
        if (gradient != nullptr) gradient[j] = point.slope * (row_weight * gradient_scale);
      }
    }
    total += double(row_loss) * double(row_weight);
  }
  return total;
}

// Part of a row's target that is a class, given the class number, or given the shares of all classes.
template <typename T>
T share_of_class(const T* target, bool are_shares, std::int64_t label, std::int64_t j) {
  return are_shares ? target[j] : T(j == label);
}

// One pass over the scores for their maximum, one for the exponentials, one for the gradient.
template <typename T>
double sum_cross_entropy(const Loss<T>& loss, const T* scores, const T* targets, const T* weight, std::int64_t n_rows,
                         T gradient_scale, T* gradient) {
  const std::int64_t k = loss.n_outputs, t = loss.n_targets;
  const bool are_shares = t > 1;
  const T spread = loss.label_smoothing / T(k), hit = 1 - loss.label_smoothing;
  double total = 0;
  for (std::int64_t i = 0; i < n_rows; ++i) {
    const T* const row = scores + i * k;
    const T* const target = targets + i * t;
    const auto label = are_shares ? std::int64_t{0} : static_cast<std::int64_t>(target[0]);
    if (label < 0 || label >= k) throw std::out_of_range("softwood: a target is not a class number below n_outputs");
    const T highest = *std::max_element(row, row + k);
    T sum = 0, gaps = 0, expected_gap = 0;
    for (std::int64_t j = 0; j < k; ++j) {
      const T e = std::exp(row[j] - highest);
      if (gradient != nullptr) gradient[i * k + j] = e;
      sum += e;
      gaps += highest - row[j];
      if (are_shares) expected_gap += target[j] * (highest - row[j]);
    }
    if (!are_shares) expected_gap = highest - row[label];
    const T row_weight = weight != nullptr ? weight[i] : T(1);
    total += double(row_weight) * double(std::log(sum) + hit * expected_gap + spread * gaps);
    if (gradient == nullptr) continue;
    const T factor = row_weight * gradient_scale, inverse = 1 / sum;
    for (std::int64_t j = 0; j < k; ++j) {
      const T wanted = spread + hit * share_of_class(target, are_shares, label, j);
      gradient[i * k + j] = (gradient[i * k + j] * inverse - wanted) * factor;
    }
  }
  return total;
}

}  // namespace

template <typename T>
double Loss<T>::evaluate(const T* scores, const T* targets, const T* weight, std::int64_t n_rows, T gradient_scale,
                         T* gradient) const {
  const auto elements = [&](const auto& element) {
    return sum_elements(*this, scores, targets, weight, n_rows, gradient_scale, gradient, element);
  };
  const auto one_per_target = [&](const auto& element) {
    return elements([&](T score, T target, std::int64_t) { return element(score, target); });
  };
  switch (kind) {
    case LossKind::cross_entropy:
      return sum_cross_entropy(*this, scores, targets, weight, n_rows, gradient_scale, gradient);
    case LossKind::binary_cross_entropy:
      return one_per_target(
          [s = label_smoothing](T score, T target) { return binary_cross_entropy(score, target * (1 - s) + s / 2); });
    case LossKind::squared_error:
      return one_per_target([](T score, T target) { return squared_error(score, target); });
    case LossKind::absolute_error:
      return one_per_target([](T score, T target) { return absolute_error(score, target); });
    case LossKind::huber:
      return one_per_target([d = delta](T score, T target) { return huber(score, target, d); });
    case LossKind::quantile:
      return elements(
          [this](T score, T target, std::int64_t which) { return pinball(score, target, quantiles[which]); });
    case LossKind::poisson:
      return one_per_target([](T score, T target) { return poisson(score, target); });
    case LossKind::gamma:
      return one_per_target([](T score, T target) { return softwood::gamma(score, target); });
    case LossKind::tweedie:
      return one_per_target([p = power](T score, T target) { return tweedie(score, target, p); });
    case LossKind::custom:
      break;
  }
  if (weight != nullptr) return custom(scores, targets, weight, n_rows, gradient);
  const std::vector<T> ones(n_rows, T(1));
  return custom(scores, targets, ones.data(), n_rows, gradient);
}

template struct Loss<float>;
template struct Loss<double>;

}  // namespace softwood

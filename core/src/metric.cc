#include "metric.h"

#include <algorithm>
#include <cstddef>
#include <limits>

namespace softwood {
namespace {

bool predicts_means(LossKind kind) {
  return kind == LossKind::squared_error || kind == LossKind::absolute_error || kind == LossKind::huber;
}

}  // namespace

template <typename T>
void Metric<T>::add(const T* scores, const T* targets, const T* weight, std::int64_t n_rows) {
  const std::int64_t k = loss_.n_outputs, n_targets = loss_.n_targets;
  for (std::int64_t i = 0; i < n_rows; ++i, scores += k, targets += n_targets) {
    const double w = weight == nullptr ? 1 : double(weight[i]);
    if (loss_.kind == LossKind::cross_entropy) {
      targets_[0].weight += w;
      const auto likeliest = std::max_element(scores, scores + k) - scores;
      const auto label =
          n_targets > 1 ? std::max_element(targets, targets + k) - targets : static_cast<std::ptrdiff_t>(targets[0]);
      if (likeliest == label) targets_[0].right += w;
      continue;
    }
    for (std::int64_t c = 0; c < n_targets; ++c) {
      Sums& sums = targets_[static_cast<std::size_t>(c)];
      if (sums.weight == 0) sums.origin = double(targets[c]);
      sums.weight += w;
      if (loss_.kind == LossKind::binary_cross_entropy) {
        if ((scores[c] > 0) == (targets[c] > T(0.5))) sums.right += w;
      } else if (predicts_means(loss_.kind)) {
        const double value = double(targets[c]) - sums.origin, residual = double(scores[c]) - double(targets[c]);
        sums.residual_square += w * residual * residual;
        sums.value += w * value;
        sums.square += w * value * value;
      }
    }
  }
}

template <typename T>
double Metric<T>::value() const {
  const bool is_class = loss_.kind == LossKind::cross_entropy || loss_.kind == LossKind::binary_cross_entropy;
  const std::size_t n = loss_.kind == LossKind::cross_entropy ? 1 : targets_.size();
  double total = 0;
  for (std::size_t c = 0; c < n; ++c) {
    const Sums& sums = targets_[c];
    const double spread = sums.square - sums.value * sums.value / sums.weight;
    if (!(sums.weight > 0) || !(is_class || (predicts_means(loss_.kind) && spread > 0))) {
      return std::numeric_limits<double>::quiet_NaN();
    }
    total += is_class ? sums.right / sums.weight : 1 - sums.residual_square / spread;
  }
  return total / double(n);
}

template class Metric<float>;
template class Metric<double>;

}  // namespace softwood

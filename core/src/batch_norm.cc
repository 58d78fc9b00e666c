#include "batch_norm.h"

#include <algorithm>
#include <cmath>

#include "softwood/thread_pool.h"

namespace softwood {
namespace {

// Division by a smaller scale would lose more than two digits of its gradient.
constexpr double kSmallestDivisor = 0.01;

constexpr std::int64_t kStatisticsBlock = 4096;

}  // namespace

template <typename T>
BatchNorm<T>::BatchNorm(Normalisation kind, std::int64_t n_features, double epsilon, const Parameters<T>& parameters)
    : kind_(kind), n_features_(n_features), epsilon_(T(epsilon)), parameters_(parameters) {
  if (kind == Normalisation::none) return;
  for (std::vector<T>* columns : {&mean_, &variance_, &inverse_deviation_, &factor_, &scale_gradient_}) {
    columns->resize(n_features);
  }
}

template <typename T>
void BatchNorm<T>::set_statistics(const T* mean, const T* variance) {
  for (std::int64_t f = 0; f < n_features_; ++f) {
    mean_[f] = mean[f];
    inverse_deviation_[f] = 1 / std::sqrt(variance[f] + epsilon_);
  }
}

template <typename T>
const T* BatchNorm<T>::apply(const T* x, std::int64_t n, const T* scale, const T* shift, T* out) {
  for (std::int64_t f = 0; f < n_features_; ++f) factor_[f] = inverse_deviation_[f] * scale[f];
  training_kernels<T>().normalise(x, n, n_features_, mean_.data(), factor_.data(), shift, out);
  return out;
}

template <typename T>
const T* BatchNorm<T>::training(const T* x, std::int64_t n, T* out) {
  if (kind_ == Normalisation::none) return x;
  if (kind_ == Normalisation::batch) {
    training_kernels<T>().column_moments(x, n, n_features_, mean_.data(), variance_.data());
    set_statistics(mean_.data(), variance_.data());
  } else {
    set_statistics(parameters_.mean, parameters_.variance);
  }
  return apply(x, n, parameters_.scale.value, parameters_.shift.value, out);
}

template <typename T>
const T* BatchNorm<T>::evaluation(const T* x, std::int64_t n, T* out) {
  if (kind_ == Normalisation::none) return x;
  set_statistics(parameters_.mean, parameters_.variance);
  return apply(x, n, parameters_.scale.evaluated, parameters_.shift.evaluated, out);
}

template <typename T>
bool BatchNorm<T>::needs_input_gradient() const {
  if (kind_ == Normalisation::none) return false;
  const T* const scale = parameters_.scale.value;
  return std::any_of(scale, scale + n_features_, [](T s) { return std::abs(s) < T(kSmallestDivisor); });
}

template <typename T>
const T* BatchNorm<T>::scale_gradient(const T* x, std::int64_t n, const T* input_gradient) {
  std::fill(scale_gradient_.begin(), scale_gradient_.end(), T(0));
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t f = 0; f < n_features_; ++f) {
      scale_gradient_[f] += (x[i * n_features_ + f] - mean_[f]) * input_gradient[i * n_features_ + f];
    }
  }
  for (std::int64_t f = 0; f < n_features_; ++f) scale_gradient_[f] *= inverse_deviation_[f];
  return scale_gradient_.data();
}

// Two passes over each block while it is in the cache; blocks are merged in order by the formula of Chan, Golub and
// LeVeque.
template <typename T>
void column_statistics(const Samples<T>& samples, std::int64_t n_features, double* mean, double* variance,
                       int n_threads) {
  const std::int64_t p = n_features, n = samples.n_rows, n_blocks = (n + kStatisticsBlock - 1) / kStatisticsBlock;
  std::vector<double> block_mean(n_blocks * p), block_squares(n_blocks * p);
  parallel_for(n_blocks, n_threads, [&](std::int64_t block) {
    const std::int64_t begin = block * kStatisticsBlock, end = std::min(n, begin + kStatisticsBlock);
    double* const centre = block_mean.data() + block * p;
    double* const squares = block_squares.data() + block * p;
    std::vector<T> row(p);
    for (std::int64_t i = begin; i < end; ++i) {
      samples.read(samples.row(i), p, row.data());
      for (std::int64_t f = 0; f < p; ++f) centre[f] += double(row[f]);
    }
    for (std::int64_t f = 0; f < p; ++f) centre[f] /= double(end - begin);
    for (std::int64_t i = begin; i < end; ++i) {
      samples.read(samples.row(i), p, row.data());
      for (std::int64_t f = 0; f < p; ++f) squares[f] += (double(row[f]) - centre[f]) * (double(row[f]) - centre[f]);
    }
  });
  std::fill_n(mean, p, 0.0);
  std::fill_n(variance, p, 0.0);
  for (std::int64_t block = 0; block < n_blocks; ++block) {
    const double before = double(block * kStatisticsBlock),
                 count = double(std::min(n, (block + 1) * kStatisticsBlock)) - before;
    const double share = count / (before + count);
    for (std::int64_t f = 0; f < p; ++f) {
      const double gap = block_mean[block * p + f] - mean[f];
      mean[f] += gap * share;
      variance[f] += block_squares[block * p + f] + gap * gap * before * share;
    }
  }
  for (std::int64_t f = 0; f < p; ++f) variance[f] /= double(n);
}

template class BatchNorm<float>;
template class BatchNorm<double>;
template void column_statistics<float>(const Samples<float>&, std::int64_t, double*, double*, int);
template void column_statistics<double>(const Samples<double>&, std::int64_t, double*, double*, int);

}  // namespace softwood

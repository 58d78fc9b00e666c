// NumPy arrays as the views that the core takes. Every size is checked here, whatever the caller has checked before, so
// that no call from Python can make the core read or write past an array.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <bit>
#include <cstdint>
#include <optional>
#include <string>

#include "softwood/ensemble.h"

namespace softwood::bindings {

namespace nb = nanobind;

template <typename T>
using Matrix = nb::ndarray<const T, nb::numpy, nb::ndim<2>, nb::device::cpu>;  // any row stride
template <typename T, int n_dims>
using Input = nb::ndarray<const T, nb::numpy, nb::ndim<n_dims>, nb::c_contig, nb::device::cpu>;
template <typename T, int n_dims>
using Output = nb::ndarray<T, nb::numpy, nb::ndim<n_dims>, nb::c_contig, nb::device::cpu>;
template <typename T>
using AnyInput = nb::ndarray<const T, nb::numpy, nb::c_contig, nb::device::cpu>;
template <typename T>
using AnyOutput = nb::ndarray<T, nb::numpy, nb::c_contig, nb::device::cpu>;

// Raises ValueError.
[[noreturn]] inline void refuse(const std::string& what) {
  throw nb::value_error(("softwood._core: " + what + "; call softwood.ops instead").c_str());
}

inline void require(bool holds, const char* what) {
  if (!holds) refuse(what);
}

template <typename Array>
bool has_shape(const Array& array, std::initializer_list<std::int64_t> shape) {
  if (array.ndim() != shape.size()) return false;
  std::size_t axis = 0;
  for (std::int64_t length : shape) {
    if (static_cast<std::int64_t>(array.shape(axis++)) != length) return false;
  }
  return true;
}

template <typename T>
Rows<T> rows_of(const Matrix<T>& x, std::int64_t n_features) {
  require(static_cast<std::int64_t>(x.shape(1)) == n_features, "x and split_weight differ in features");
  require(x.size() == 0 || n_features == 1 || x.stride(1) == 1, "the features of a row must be contiguous");
  return {x.data(), static_cast<std::int64_t>(x.shape(0)), x.stride(0)};
}

// `leaf_weight` may be absent where only routing is asked for.
template <typename T>
Ensemble<T> ensemble_of(const Input<T, 3>& split_weight, const std::optional<Input<T, 2>>& split_bias,
                        const std::optional<Input<T, 3>>& leaf_weight, int activation, double gamma) {
  const auto n_trees = static_cast<std::int64_t>(split_weight.shape(0));
  const auto n_splits = static_cast<std::int64_t>(split_weight.shape(1));
  const auto n_features = static_cast<std::int64_t>(split_weight.shape(2));
  require(n_trees >= 1 && n_features >= 1, "split_weight is empty");
  require(n_splits >= 1 && n_splits < (std::int64_t{1} << kMaxDepth) && ((n_splits + 1) & n_splits) == 0,
          "a tree needs 2^d - 1 splits, d from 1 to 20");
  require(activation >= 0 && activation <= 2, "activation must be 0, 1 or 2");
  require(static_cast<T>(gamma) > T{0}, "gamma must be positive");
  const int depth = std::bit_width(static_cast<std::uint64_t>(n_splits));
  std::int64_t n_outputs = 1;
  if (leaf_weight) {
    n_outputs = static_cast<std::int64_t>(leaf_weight->shape(2));
    require(n_outputs >= 1 && has_shape(*leaf_weight, {n_trees, n_splits + 1, n_outputs}),
            "leaf_weight must be [m, 2^d, k]");
  }
  if (split_bias) require(has_shape(*split_bias, {n_trees, n_splits}), "split_bias must be [m, 2^d - 1]");
  return {split_weight.data(),
          split_bias ? split_bias->data() : nullptr,
          leaf_weight ? leaf_weight->data() : nullptr,
          n_trees,
          n_features,
          n_outputs,
          depth,
          static_cast<Activation>(activation),
          static_cast<T>(gamma)};
}

// Whether `array` has the shape of the layer's output.
template <typename Array, typename T>
bool has_output_shape(const Array& array, const Ensemble<T>& ensemble, std::int64_t n_rows, bool sum_trees) {
  return sum_trees ? has_shape(array, {n_rows, ensemble.n_outputs})
                   : has_shape(array, {n_rows, ensemble.n_trees, ensemble.n_outputs});
}

template <typename Array>
auto* data_or_null(const std::optional<Array>& array) {
  return array ? array->data() : nullptr;
}

}  // namespace softwood::bindings

// NumPy arrays as the views that the core takes. Every size is checked here, whatever the caller has checked before, so
// that no call from Python can make the core read or write past an array. Tapes are checked for the same reason.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <initializer_list>
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

// The numbers of an ensemble that decide how much memory it is.
struct EnsembleShape {
  std::int64_t n_trees, n_splits, n_features, n_outputs;
};

// The one place where an ensemble is made from a caller's numbers.
template <typename T>
Ensemble<T> checked_ensemble(const T* split_weight, const T* split_bias, const T* leaf_weight,
                             const EnsembleShape& shape, int activation, double gamma) {
  const auto& [n_trees, n_splits, n_features, n_outputs] = shape;
  require(n_trees >= 1 && n_features >= 1 && n_outputs >= 1, "an ensemble needs trees, features and outputs");
  if (n_splits < 1 || n_splits >= (std::int64_t{1} << kMaxDepth) ||
      !std::has_single_bit(static_cast<std::uint64_t>(n_splits + 1))) {
    refuse("a tree needs 2^d - 1 splits, d from 1 to " + std::to_string(kMaxDepth) + "; got " +
           std::to_string(n_splits));
  }
  if (activation < 0 || activation >= kActivations) refuse("unknown activation " + std::to_string(activation));
  require(static_cast<T>(gamma) > T{0} && std::isfinite(static_cast<T>(gamma)), "gamma must be positive and finite");
  return {split_weight,
          split_bias,
          leaf_weight,
          n_trees,
          n_features,
          n_outputs,
          std::bit_width(static_cast<std::uint64_t>(n_splits)),
          static_cast<Activation>(activation),
          static_cast<T>(gamma)};
}

// `leaf_weight` may be absent if only routing is needed.
template <typename T>
Ensemble<T> ensemble_of(const Input<T, 3>& split_weight, const std::optional<Input<T, 2>>& split_bias,
                        const std::optional<Input<T, 3>>& leaf_weight, int activation, double gamma) {
  const auto size = [](std::size_t length) { return static_cast<std::int64_t>(length); };
  const EnsembleShape shape{size(split_weight.shape(0)), size(split_weight.shape(1)), size(split_weight.shape(2)),
                            leaf_weight ? size(leaf_weight->shape(2)) : 1};
  require(!leaf_weight || has_shape(*leaf_weight, {shape.n_trees, shape.n_splits + 1, shape.n_outputs}),
          "leaf_weight must be [m, 2^d, k]");
  require(!split_bias || has_shape(*split_bias, {shape.n_trees, shape.n_splits}), "split_bias must be [m, 2^d - 1]");
  return checked_ensemble<T>(split_weight.data(), split_bias ? split_bias->data() : nullptr,
                             leaf_weight ? leaf_weight->data() : nullptr, shape, activation, gamma);
}

template <typename T>
std::string description(const TapeKey<T>& key) {
  return std::to_string(key.n_rows) + " rows, " + std::to_string(key.n_trees) + " trees of depth " +
         std::to_string(key.depth) + ", " + kActivationNames[static_cast<int>(key.activation)] + ", gamma " +
         std::to_string(key.gamma) + ", sum_trees " + (key.sum_trees ? "True" : "False");
}

// A tape of another call would make the core read past its memory.
template <typename T>
void check_tape(const Tape<T>* tape, const Ensemble<T>& ensemble, std::int64_t n_rows, bool sum_trees) {
  if (tape == nullptr) return;
  const TapeKey<T> wanted = TapeKey<T>::of(ensemble, n_rows, sum_trees);
  require(tape->key() != nullptr, "the tape is empty: no forward pass has filled it");
  if (*tape->key() == wanted) return;
  refuse("the tape must come from a forward pass with the same arguments; it was made for " +
         description(*tape->key()) + ", this call has " + description(wanted));
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

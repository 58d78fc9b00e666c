// Tensors of a framework, read and made without its headers and without a call of Python for each of their properties.
//
// A framework's tensor type may carry a table of functions, DLPack's exchange interface, whose layout is fixed for a
// major version of DLPack: PyTorch does from 2.10 on. Without a table, NumPy arrays stand in for tensors on both ways.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace softwood::bindings {

namespace nb = nanobind;

inline constexpr int kMostDims = 3;

// What the passes need to know of a tensor on the CPU with C-contiguous, aligned elements.
struct TensorView {
  void* data = nullptr;
  int n_dims = 0;
  std::array<std::int64_t, kMostDims> shape{};
  nb::dlpack::dtype dtype;

  template <typename T>
  bool is(std::initializer_list<std::int64_t> wanted) const {
    if (dtype != nb::dtype<T>() || n_dims != static_cast<int>(wanted.size())) return false;
    return std::equal(wanted.begin(), wanted.end(), shape.begin());
  }
};

// Looks at a tensor; false if it is not laid out as above, or not a tensor. The view is good while the object lives.
bool look_at(nb::handle object, TensorView& view);

// Memory for std::free. Many zeros are fresh pages, which cost nothing until they are touched; large pages are asked
// for, since each costs its first reader a fault, and rows far apart miss fewer of them.
void* allocate(std::size_t n_bytes, bool zeros);

// Makes a tensor and sets `data` to its elements, which `allocate` made.
nb::object new_tensor(nb::dlpack::dtype dtype, std::initializer_list<std::int64_t> shape, bool zeros, void** data);

template <typename T>
nb::object new_tensor(std::initializer_list<std::int64_t> shape, bool zeros, T** data) {
  return new_tensor(nb::dtype<T>(), shape, zeros, reinterpret_cast<void**>(data));
}

// Uses the table in a capsule from now on, or arrays if there is None; false, and arrays, if its version is unknown.
bool use_exchange(nb::object capsule);

}  // namespace softwood::bindings

// Tensors of a framework, read and created without its headers and without a Python call for each of their properties.
//
// The tensor type of a framework may provide a table of functions, DLPack's exchange interface, whose layout is fixed
// for a major version of DLPack: PyTorch does from 2.10 on. Without a table, NumPy arrays take the place of tensors.
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

inline constexpr int kMaxDims = 3;

// A tensor on the CPU with C-contiguous, aligned elements.
struct TensorView {
  void* data = nullptr;
  int n_dims = 0;
  std::array<std::int64_t, kMaxDims> shape{};
  nb::dlpack::dtype dtype;

  template <typename T>
  bool is(std::initializer_list<std::int64_t> wanted) const {
    if (dtype != nb::dtype<T>() || n_dims != static_cast<int>(wanted.size())) return false;
    return std::equal(wanted.begin(), wanted.end(), shape.begin());
  }
};

// Reads a tensor; false if it does not have this layout or is not a tensor. The view is valid while the object lives.
bool look_at(nb::handle object, TensorView& view);

// Memory to be released by std::free. A large block of zeros consists of fresh pages, which cost nothing until they are
// touched; huge pages are requested for it, for fewer page faults and TLB misses.
void* allocate(std::size_t n_bytes, bool zeros);

// Creates a tensor in memory from `allocate` and sets `data` to its elements.
nb::object new_tensor(nb::dlpack::dtype dtype, std::initializer_list<std::int64_t> shape, bool zeros, void** data);

template <typename T>
nb::object new_tensor(std::initializer_list<std::int64_t> shape, bool zeros, T** data) {
  return new_tensor(nb::dtype<T>(), shape, zeros, reinterpret_cast<void**>(data));
}

// From now on uses the table in a capsule, or arrays if it is None. If the version is unknown, uses arrays and returns
// false.
bool use_exchange(nb::object capsule);

}  // namespace softwood::bindings

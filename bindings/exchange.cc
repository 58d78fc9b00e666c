// DLPack's exchange interface, declared by its binary layout.
#include "exchange.h"

#include <cstdlib>
#include <new>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace softwood::bindings {
namespace {

constexpr std::uint32_t kMajorVersion = 1;
constexpr std::uint32_t kMinorVersion = 3;  // this layout was verified with it; later ones only append
constexpr std::size_t kAlignment = 64;
constexpr std::size_t kHugePageBytes = std::size_t{1} << 22;

struct ManagedTensor {
  std::uint32_t major, minor;
  void* context;
  void (*deleter)(ManagedTensor*);
  std::uint64_t flags;
  nb::dlpack::dltensor tensor;
};

struct Exchange {
  std::uint32_t major, minor;
  void* previous;
  void* allocate;
  void* managed_from_object;
  int (*object_from_managed)(ManagedTensor* tensor, void** object);  // the object takes ownership of the tensor
  int (*view_of_object)(void* object, nb::dlpack::dltensor* view);
  void* current_stream;
};

const Exchange* exchange = nullptr;

// A tensor that exists until the framework calls the deleter. Its elements follow in the same allocation.
struct Block {
  ManagedTensor managed;
  std::int64_t shape[kMaxDims], strides[kMaxDims];

  char* elements() {
    const auto end = reinterpret_cast<std::uintptr_t>(this + 1);
    return reinterpret_cast<char*>((end + kAlignment - 1) / kAlignment * kAlignment);
  }
};

bool is_contiguous(const nb::dlpack::dltensor& tensor) {
  if (tensor.strides == nullptr) return true;  // by DLPack's definition
  std::int64_t expected = 1;
  for (int dim = tensor.ndim - 1; dim >= 0; --dim) {
    if (tensor.shape[dim] != 1 && tensor.strides[dim] != expected) return false;
    expected *= tensor.shape[dim];
  }
  return true;
}

bool look_at_tensor(const nb::dlpack::dltensor& tensor, TensorView& view) {
  if (tensor.device.device_type != nb::device::cpu::value || tensor.ndim > kMaxDims) return false;
  view.data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  view.n_dims = tensor.ndim;
  view.dtype = tensor.dtype;
  std::copy_n(tensor.shape, tensor.ndim, view.shape.begin());
  if (std::find(tensor.shape, tensor.shape + tensor.ndim, 0) != tensor.shape + tensor.ndim) return true;
  const std::uintptr_t item_size = std::max(tensor.dtype.bits / 8U, 1U);
  return tensor.data != nullptr && reinterpret_cast<std::uintptr_t>(view.data) % item_size == 0 &&
         is_contiguous(tensor);
}

}  // namespace

void* allocate(std::size_t n_bytes, bool zeros) {
  void* const memory = zeros ? std::calloc(n_bytes, 1) : std::malloc(n_bytes);
  if (memory == nullptr) throw std::bad_alloc();
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  if (zeros && n_bytes >= kHugePageBytes) {
    constexpr std::uintptr_t kPage = 4096;
    const std::uintptr_t begin = reinterpret_cast<std::uintptr_t>(memory), first = (begin + kPage - 1) / kPage * kPage;
    madvise(reinterpret_cast<void*>(first), begin + n_bytes - first, MADV_HUGEPAGE);  // may fail
  }
#endif
  return memory;
}

bool use_exchange(nb::object capsule) {
  exchange = nullptr;
  if (capsule.is_none()) return true;
  const auto* found = static_cast<const Exchange*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  if (found == nullptr) throw nb::python_error();
  if (found->major != kMajorVersion) return false;
  exchange = found;
  capsule.release();  // the table must outlive every tensor
  return true;
}

bool look_at(nb::handle object, TensorView& view) {
  nb::dlpack::dltensor tensor;
  if (exchange != nullptr) {
    if (exchange->view_of_object(object.ptr(), &tensor) == 0) return look_at_tensor(tensor, view);
    PyErr_Clear();
    return false;
  }
  nb::ndarray<nb::ro> array;
  if (!nb::try_cast(object, array)) return false;
  tensor.data = const_cast<void*>(array.data());
  tensor.device = {array.device_type(), array.device_id()};
  tensor.ndim = static_cast<std::int32_t>(array.ndim());
  tensor.dtype = array.dtype();
  tensor.shape = const_cast<std::int64_t*>(array.shape_ptr());
  tensor.strides = const_cast<std::int64_t*>(array.stride_ptr());
  return look_at_tensor(tensor, view);
}

nb::object new_tensor(nb::dlpack::dtype dtype, std::initializer_list<std::int64_t> shape, bool zeros, void** data) {
  std::size_t n_bytes = dtype.bits / 8U;
  for (std::int64_t length : shape) n_bytes *= static_cast<std::size_t>(length);
  void* const memory = allocate(sizeof(Block) + kAlignment + n_bytes, zeros);
  Block* const block = new (memory) Block;
  *data = block->elements();
  std::size_t n_dims = shape.size();
  for (std::int64_t stride = 1; n_dims-- > 0; stride *= block->shape[n_dims]) {
    block->shape[n_dims] = shape.begin()[n_dims];
    block->strides[n_dims] = stride;
  }
  if (exchange == nullptr) {
    const nb::capsule owner(memory, [](void* pointer) noexcept { std::free(pointer); });
    const std::vector<std::size_t> lengths(shape.begin(), shape.end());
    return nb::cast(nb::ndarray<nb::numpy>(*data, lengths.size(), lengths.data(), owner, block->strides, dtype));
  }
  block->managed = {kMajorVersion, kMinorVersion, nullptr, [](ManagedTensor* self) { std::free(self); }, 0, {}};
  nb::dlpack::dltensor& tensor = block->managed.tensor;
  tensor.data = *data;
  tensor.device = {nb::device::cpu::value, 0};
  tensor.ndim = static_cast<std::int32_t>(shape.size());
  tensor.dtype = dtype;
  tensor.shape = block->shape;
  tensor.strides = block->strides;
  void* object = nullptr;
  if (exchange->object_from_managed(&block->managed, &object) != 0) throw nb::python_error();
  return nb::steal(static_cast<PyObject*>(object));
}

}  // namespace softwood::bindings

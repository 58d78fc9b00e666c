// Handlers through which compiled JAX programs call the core, without Python on the way.
//
// Arguments of the forward are x, split_weight, leaf_weight and maybe split_bias; those of the backward have
// grad_output before them. softwood.jax has checked their shapes; a frame that does not hold what is expected is
// reported to XLA, which raises. Outputs are XLA's memory. A row of x with a NaN or an infinity gives a row of NaN.
#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <limits>
#include <stdexcept>
#include <vector>

#include "softwood/ensemble.h"
#include "softwood/finite.h"
#include "softwood/thread_pool.h"
#include "xla_ffi.h"

namespace softwood::xla {
namespace {

struct Options {
  std::int32_t activation = 0;
  std::int32_t sum_trees = 0;
  std::int32_t n_threads = 0;  // 0: the library's default
  std::int32_t wanted = 0;     // backward: bit i asks for the gradient of argument i after grad_output
  double gamma = 0.0;
};

Options read_options(const Attributes& attributes) {
  Options options;
  const bool complete = read_attribute(attributes, "activation", options.activation) &&
                        read_attribute(attributes, "sum_trees", options.sum_trees) &&
                        read_attribute(attributes, "n_threads", options.n_threads) &&
                        read_attribute(attributes, "wanted", options.wanted) &&
                        read_attribute(attributes, "gamma", options.gamma);
  if (!complete) throw std::invalid_argument("softwood: the call frame lacks an attribute; please report this");
  if (options.n_threads <= 0) options.n_threads = num_threads();
  return options;
}

template <typename T>
const T* data(const Values& values, std::int64_t i) {
  return static_cast<const T*>(buffer(values, i).data);
}

// `first` is the index of x.
template <typename T>
Ensemble<T> read_ensemble(const Values& arguments, std::int64_t first, const Options& options) {
  const std::int64_t n_given = arguments.size - first;
  const bool complete = (n_given == 3 || n_given == 4) && buffer(arguments, first).rank == 2 &&
                        buffer(arguments, first + 1).rank == 3 && buffer(arguments, first + 2).rank == 3;
  if (!complete) throw std::invalid_argument("softwood: the call frame lacks an argument; please report this");
  const Buffer& split_weight = buffer(arguments, first + 1);
  const Buffer& leaf_weight = buffer(arguments, first + 2);
  int depth = 1;
  while (depth < kMaxDepth && (std::int64_t{1} << depth) < leaf_weight.dims[1]) ++depth;
  return Ensemble<T>{
      .split_weight = data<T>(arguments, first + 1),
      .split_bias = n_given == 4 ? data<T>(arguments, first + 3) : nullptr,
      .leaf_weight = data<T>(arguments, first + 2),
      .n_trees = split_weight.dims[0],
      .n_features = split_weight.dims[2],
      .n_outputs = leaf_weight.dims[2],
      .depth = depth,
      .activation = static_cast<Activation>(options.activation),
      .gamma = static_cast<T>(options.gamma),
  };
}

template <typename T>
Rows<T> read_rows(const Buffer& x) {
  return Rows<T>{static_cast<const T*>(x.data), x.dims[0], x.dims[1]};
}

// The core leaves the output of rows that hold a NaN or an infinity open.
template <typename T>
void mark_bad_rows(const Rows<T>& x, std::int64_t n_features, T* output, std::int64_t row_size) {
  if (first_non_finite(x.data, x.n_rows, n_features, x.row_stride) < 0) return;
  for (std::int64_t i = 0; i < x.n_rows; ++i) {
    if (first_non_finite(x.row(i), 1, n_features, x.row_stride) < 0) continue;
    std::fill_n(output + i * row_size, row_size, std::numeric_limits<T>::quiet_NaN());
  }
}

template <typename T>
void run_forward(const Frame& frame) {
  const Options options = read_options(frame.attributes);
  const Ensemble<T> ensemble = read_ensemble<T>(frame.arguments, 0, options);
  const Rows<T> x = read_rows<T>(buffer(frame.arguments, 0));
  T* output = static_cast<T*>(buffer(frame.results, 0).data);
  const bool sum_trees = options.sum_trees != 0;
  forward<T>(ensemble, x, sum_trees, output, nullptr, options.n_threads);
  mark_bad_rows(x, ensemble.n_features, output, ensemble.n_outputs * (sum_trees ? 1 : ensemble.n_trees));
}

// Zeros that the core may add to: the next result if `wanted`, else null.
template <typename T>
T* next_gradient(const Values& results, std::int64_t& next, bool wanted) {
  if (!wanted) return nullptr;
  const Buffer& result = buffer(results, next++);
  std::int64_t size = 1;
  for (std::int64_t i = 0; i < result.rank; ++i) size *= result.dims[i];
  T* zeros = static_cast<T*>(result.data);
  std::fill_n(zeros, size, T{0});
  return zeros;
}

template <typename T>
void run_backward(const Frame& frame) {
  const Options options = read_options(frame.attributes);
  const Ensemble<T> ensemble = read_ensemble<T>(frame.arguments, 1, options);
  const Rows<T> x = read_rows<T>(buffer(frame.arguments, 1));
  std::vector<std::uint8_t> split_marked(ensemble.n_trees * ensemble.n_splits());
  std::vector<std::uint8_t> leaf_marked(ensemble.n_trees * ensemble.n_leaves());
  std::int64_t next = 0;
  Gradients<T> gradients{};
  gradients.x = next_gradient<T>(frame.results, next, options.wanted & 1);
  gradients.split_weight = next_gradient<T>(frame.results, next, options.wanted & 2);
  gradients.leaf_weight = next_gradient<T>(frame.results, next, options.wanted & 4);
  gradients.split_bias = next_gradient<T>(frame.results, next, options.wanted & 8);
  gradients.split_marked = split_marked.data();
  gradients.leaf_marked = leaf_marked.data();
  backward<T>(ensemble, x, options.sum_trees != 0, data<T>(frame.arguments, 0), nullptr, gradients, options.n_threads);
}

// What both handlers share: answers XLA's questions, picks the type, turns exceptions into errors.
template <void (*run_float)(const Frame&), void (*run_double)(const Frame&)>
Error* handle(Frame* frame) {
  if (answer_metadata(*frame)) return nullptr;
  if (frame->struct_size < sizeof(Frame) || frame->api->version.major != kMajorVersion) {
    return make_error(*frame, kInternal, "softwood: this jaxlib's call frame is not the one softwood was built for");
  }
  if (frame->stage != kExecute) return nullptr;
  try {
    if (is_readable(frame->arguments, kFloat32) && is_readable(frame->results, kFloat32)) {
      run_float(*frame);
    } else if (is_readable(frame->arguments, kFloat64) && is_readable(frame->results, kFloat64)) {
      run_double(*frame);
    } else {
      return make_error(*frame, kInvalidArgument, "softwood: arrays must all be float32 or all float64");
    }
  } catch (const std::exception& error) {
    return make_error(*frame, kInternal, error.what());
  }
  return nullptr;
}

}  // namespace

Error* handle_forward(Frame* frame) { return handle<run_forward<float>, run_forward<double>>(frame); }
Error* handle_backward(Frame* frame) { return handle<run_backward<float>, run_backward<double>>(frame); }

}  // namespace softwood::xla

namespace softwood::bindings {

// What jax.ffi.register_ffi_target takes, by name.
void bind_xla(nanobind::module_& module) {
  module.def("xla_handlers", [] {
    nanobind::dict handlers;
    handlers["forward"] = nanobind::capsule(reinterpret_cast<void*>(&xla::handle_forward));
    handlers["backward"] = nanobind::capsule(reinterpret_cast<void*>(&xla::handle_backward));
    return handlers;
  });
}

}  // namespace softwood::bindings

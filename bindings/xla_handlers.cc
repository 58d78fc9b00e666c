// Handlers through which compiled JAX programs call the core, without Python on the way.
//
// The arguments of the forward pass are x, split_weight, leaf_weight and optionally split_bias; those of the backward
// pass begin with grad_output. All shapes are checked; an unexpected frame is reported to XLA, which raises. Outputs
// are XLA's memory. A row of x with a NaN or an infinity gives a row of NaN.
#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <initializer_list>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "arrays.h"
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

bool has_dims(const Buffer& buffer, std::initializer_list<std::int64_t> dims) {
  return buffer.rank == static_cast<std::int64_t>(dims.size()) && std::equal(dims.begin(), dims.end(), buffer.dims);
}

void require_dims(const Buffer& buffer, std::initializer_list<std::int64_t> dims) {
  if (!has_dims(buffer, dims)) throw std::invalid_argument("softwood: an array of the call has the wrong shape");
}

// The arrays of a call, checked against one another. `first` is the index of x.
template <typename T>
struct Call {
  Options options;
  Ensemble<T> ensemble;
  Rows<T> x;

  Call(const Frame& frame, std::int64_t first) : options(read_options(frame.attributes)) {
    const Values& arguments = frame.arguments;
    const std::int64_t n_given = arguments.size - first;
    const bool complete = (n_given == 3 || n_given == 4) && buffer(arguments, first).rank == 2 &&
                          buffer(arguments, first + 1).rank == 3 && buffer(arguments, first + 2).rank == 3;
    if (!complete) throw std::invalid_argument("softwood: the call frame lacks an argument; please report this");
    const Buffer& rows = buffer(arguments, first);
    const std::int64_t* const splits = buffer(arguments, first + 1).dims;
    const bindings::EnsembleShape shape{splits[0], splits[1], splits[2], buffer(arguments, first + 2).dims[2]};
    ensemble = bindings::checked_ensemble<T>(data<T>(arguments, first + 1),
                                             n_given == 4 ? data<T>(arguments, first + 3) : nullptr,
                                             data<T>(arguments, first + 2), shape, options.activation, options.gamma);
    require_dims(rows, {rows.dims[0], shape.n_features});
    require_dims(buffer(arguments, first + 2), {shape.n_trees, shape.n_splits + 1, shape.n_outputs});
    if (n_given == 4) require_dims(buffer(arguments, first + 3), {shape.n_trees, shape.n_splits});
    x = {static_cast<const T*>(rows.data), rows.dims[0], rows.dims[1]};
  }

  bool sum_trees() const { return options.sum_trees != 0; }

  // Whether this is the output, or its gradient.
  void require_output(const Buffer& given) const {
    const std::int64_t n = x.n_rows, m = ensemble.n_trees, k = ensemble.n_outputs;
    sum_trees() ? require_dims(given, {n, k}) : require_dims(given, {n, m, k});
  }
};

// The core does not define the output of rows that contain a NaN or an infinity.
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
  const Call<T> call(frame, 0);
  const Ensemble<T>& ensemble = call.ensemble;
  if (frame.results.size != 1) throw std::invalid_argument("softwood: a forward pass has one result");
  call.require_output(buffer(frame.results, 0));
  T* output = static_cast<T*>(buffer(frame.results, 0).data);
  forward<T>(ensemble, call.x, call.sum_trees(), output, nullptr, call.options.n_threads);
  mark_bad_rows(call.x, ensemble.n_features, output, ensemble.n_outputs * (call.sum_trees() ? 1 : ensemble.n_trees));
}

// Hands out the results of a backward pass in order, filled with zeros.
template <typename T>
class Results {
 public:
  explicit Results(const Values& results) : results_(results) {}

  // The next result, of this shape, if it is wanted, otherwise null.
  T* next(bool wanted, std::initializer_list<std::int64_t> dims) {
    if (!wanted) return nullptr;
    if (next_ == results_.size) throw std::invalid_argument("softwood: the call frame lacks a result");
    const Buffer& result = buffer(results_, next_++);
    require_dims(result, dims);
    T* const zeros = static_cast<T*>(result.data);
    std::fill_n(zeros, std::accumulate(dims.begin(), dims.end(), std::int64_t{1}, std::multiplies<>()), T{0});
    return zeros;
  }

 private:
  const Values& results_;
  std::int64_t next_ = 0;
};

template <typename T>
void run_backward(const Frame& frame) {
  const Call<T> call(frame, 1);
  const Ensemble<T>& ensemble = call.ensemble;
  const std::int64_t m = ensemble.n_trees, p = ensemble.n_features;
  const std::int64_t n_splits = ensemble.n_splits(), n_leaves = ensemble.n_leaves();
  const std::int32_t wanted = call.options.wanted;
  call.require_output(buffer(frame.arguments, 0));
  std::vector<std::uint8_t> split_marked(m * n_splits), leaf_marked(m * n_leaves);
  Results<T> results(frame.results);
  Gradients<T> gradients{};
  gradients.x = results.next(wanted & 1, {call.x.n_rows, p});
  gradients.split_weight = results.next(wanted & 2, {m, n_splits, p});
  gradients.leaf_weight = results.next(wanted & 4, {m, n_leaves, ensemble.n_outputs});
  gradients.split_bias = results.next(wanted & 8, {m, n_splits});
  gradients.split_marked = split_marked.data();
  gradients.leaf_marked = leaf_marked.data();
  backward<T>(ensemble, call.x, call.sum_trees(), data<T>(frame.arguments, 0), nullptr, gradients,
              call.options.n_threads);
}

// Common to both handlers: answers XLA's questions, selects the type, turns exceptions into errors.
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

// The handlers by name, for jax.ffi.register_ffi_target.
void bind_xla(nanobind::module_& module) {
  module.def("xla_handlers", [] {
    nanobind::dict handlers;
    handlers["forward"] = nanobind::capsule(reinterpret_cast<void*>(&xla::handle_forward));
    handlers["backward"] = nanobind::capsule(reinterpret_cast<void*>(&xla::handle_backward));
    return handlers;
  });
}

}  // namespace softwood::bindings

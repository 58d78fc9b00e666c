// The passes of the ensemble on the tensors of a framework. All arguments are checked, as in the passes on arrays.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "arrays.h"
#include "exchange.h"
#include "softwood/ensemble.h"
#include "softwood/marked_rows.h"
#include "softwood/thread_pool.h"

namespace softwood::bindings {
namespace {

using namespace nb::literals;

// x, split_weight, leaf_weight and split_bias (which may be None).
struct Tensors {
  TensorView x, split_weight, leaf_weight, split_bias;
  bool has_bias;

  std::int64_t n_rows() const { return x.shape[0]; }
  std::int64_t n_features() const { return x.shape[1]; }
  std::int64_t n_trees() const { return leaf_weight.shape[0]; }
  std::int64_t n_leaves() const { return leaf_weight.shape[1]; }
  std::int64_t n_splits() const { return n_leaves() - 1; }
  std::int64_t n_outputs() const { return leaf_weight.shape[2]; }

  bool look(nb::handle x_object, nb::handle split_object, nb::handle leaf_object, nb::handle bias_object) {
    has_bias = !bias_object.is_none();
    return look_at(x_object, x) && look_at(split_object, split_weight) && look_at(leaf_object, leaf_weight) &&
           (!has_bias || look_at(bias_object, split_bias));
  }

  template <typename T>
  bool match() const {
    return x.is<T>({n_rows(), n_features()}) && leaf_weight.is<T>({n_trees(), n_leaves(), n_outputs()}) &&
           split_weight.is<T>({n_trees(), n_splits(), n_features()}) &&
           (!has_bias || split_bias.is<T>({n_trees(), n_splits()})) && n_features() >= 1 && n_trees() >= 1 &&
           n_outputs() >= 1 && n_leaves() >= 2 && n_leaves() <= (std::int64_t{1} << kMaxDepth) &&
           std::has_single_bit(static_cast<std::uint64_t>(n_leaves()));
  }

  template <typename T>
  Ensemble<T> ensemble(int activation, double gamma) const {
    return checked_ensemble<T>(
        static_cast<const T*>(split_weight.data), has_bias ? static_cast<const T*>(split_bias.data) : nullptr,
        static_cast<const T*>(leaf_weight.data), {n_trees(), n_splits(), n_features(), n_outputs()}, activation, gamma);
  }

  template <typename T>
  Rows<T> rows() const {
    return {static_cast<const T*>(x.data), n_rows(), n_features()};
  }
};

bool accepts_tensors(nb::handle x, nb::handle split_weight, nb::handle leaf_weight, nb::handle split_bias) {
  Tensors tensors;
  return tensors.look(x, split_weight, leaf_weight, split_bias) && (tensors.match<float>() || tensors.match<double>());
}

// Returns the output and the tape, or None.
template <typename T>
nb::object forward_of(const Tensors& tensors, int activation, double gamma, bool sum_trees, int n_threads,
                      bool with_tape) {
  const Ensemble<T> ensemble = tensors.ensemble<T>(activation, gamma);
  const std::int64_t n = tensors.n_rows(), m = ensemble.n_trees, k = ensemble.n_outputs;
  T* elements;
  nb::object output = sum_trees ? new_tensor<T>({n, k}, false, &elements) : new_tensor<T>({n, m, k}, false, &elements);
  Tape<T> tape;
  {
    nb::gil_scoped_release unlocked;
    forward(ensemble, tensors.rows<T>(), sum_trees, elements, with_tape ? &tape : nullptr,
            std::min(n_threads, num_threads()));
  }
  return nb::make_tuple(std::move(output), with_tape ? nb::cast(std::move(tape)) : nb::none());
}

nb::object forward_tensors(nb::handle x, nb::handle split_weight, nb::handle leaf_weight, nb::handle split_bias,
                           int activation, double gamma, bool sum_trees, int n_threads, bool with_tape) {
  Tensors tensors;
  require(tensors.look(x, split_weight, leaf_weight, split_bias), "tensors must be contiguous, on the CPU");
  const bool is_float = tensors.match<float>();
  require(is_float || tensors.match<double>(), "tensors do not match");
  const auto run = is_float ? &forward_of<float> : &forward_of<double>;
  return run(tensors, activation, gamma, sum_trees, n_threads, with_tape);
}

// Which gradients are needed.
struct Needs {
  bool x, split_weight, leaf_weight, split_bias;
};

// All arguments of a backward pass except where it writes.
template <typename T>
struct BackwardCall {
  Ensemble<T> ensemble;
  Rows<T> rows;
  bool sum_trees;
  const T* grad_output;
  const Tape<T>* tape;
  Needs needs;
  int n_threads;

  void run(const Gradients<T>& gradients) const {
    backward(ensemble, rows, sum_trees, grad_output, tape, gradients, std::min(n_threads, num_threads()));
  }
};

template <typename T>
nb::object dense_gradients(const BackwardCall<T>& call) {
  const std::int64_t n = call.rows.n_rows, p = call.ensemble.n_features, m = call.ensemble.n_trees;
  const std::int64_t n_splits = call.ensemble.n_splits(), n_leaves = call.ensemble.n_leaves();
  Gradients<T> to{};
  const Needs& needs = call.needs;
  nb::object x = needs.x ? new_tensor<T>({n, p}, false, &to.x) : nb::none();
  nb::object split = needs.split_weight ? new_tensor<T>({m, n_splits, p}, true, &to.split_weight) : nb::none();
  nb::object leaf =
      needs.leaf_weight ? new_tensor<T>({m, n_leaves, call.ensemble.n_outputs}, true, &to.leaf_weight) : nb::none();
  nb::object bias = needs.split_bias ? new_tensor<T>({m, n_splits}, true, &to.split_bias) : nb::none();
  {
    nb::gil_scoped_release unlocked;
    std::vector<std::uint8_t> marks(static_cast<std::size_t>(m * (n_splits + n_leaves)));
    to.split_marked = marks.data();
    to.leaf_marked = marks.data() + m * n_splits;
    call.run(to);
  }
  return nb::make_tuple(std::move(x), std::move(split), std::move(leaf), std::move(bias));
}

// Memory for all gradient rows of one ensemble, zero between passes; its pages cost nothing until they are reached.
// Kept from step to step, so that the cost of a step is proportional to what it reaches.
template <typename T>
class RowMemory {
 public:
  bool in_use = false;  // while a pass writes to it; read and written under the GIL

  // After a pass that failed, rows may not be zero.
  void discard() {
    for (Zeros<T>* rows : {&split_weight_, &leaf_weight_, &split_bias_}) *rows = {};
    for (Zeros<std::uint8_t>* marks : {&split_marked_, &leaf_marked_}) *marks = {};
  }

  Gradients<T> prepare(const Ensemble<T>& ensemble, const Needs& needs) {
    const std::int64_t splits = ensemble.n_trees * ensemble.n_splits(), leaves = ensemble.n_trees * ensemble.n_leaves();
    return {nullptr,
            needs.split_weight ? split_weight_.zeros(splits * ensemble.n_features) : nullptr,
            needs.split_bias ? split_bias_.zeros(splits) : nullptr,
            needs.leaf_weight ? leaf_weight_.zeros(leaves * ensemble.n_outputs) : nullptr,
            needs.split_weight || needs.split_bias ? split_marked_.zeros(splits) : nullptr,
            needs.leaf_weight ? leaf_marked_.zeros(leaves) : nullptr};
  }

 private:
  template <typename Item>
  class Zeros {
   public:
    Item* zeros(std::int64_t size) {
      if (size != size_) {
        items_.reset(static_cast<Item*>(allocate(static_cast<std::size_t>(size) * sizeof(Item), true)));
        size_ = size;
      }
      return items_.get();
    }

   private:
    struct Free {
      void operator()(Item* items) const { std::free(items); }
    };
    std::unique_ptr<Item, Free> items_;
    std::int64_t size_ = 0;
  };
  Zeros<T> split_weight_, leaf_weight_, split_bias_;
  Zeros<std::uint8_t> split_marked_, leaf_marked_;
};

template <typename T>
class InUse {
 public:
  explicit InUse(RowMemory<T>& memory) : memory_(memory) { memory_.in_use = true; }
  ~InUse() { memory_.in_use = false; }
  InUse(const InUse&) = delete;
  InUse& operator=(const InUse&) = delete;

 private:
  RowMemory<T>& memory_;
};

// Returns (indices [2, r], values [r, n_columns], biases [r]) of the r marked rows; values are None for null arrays.
template <typename T>
nb::object taken_rows(std::uint8_t* marked, std::int64_t n_trees, std::int64_t n_nodes, T* rows, std::int64_t n_columns,
                      T* biases) {
  if (rows == nullptr && biases == nullptr) return nb::make_tuple(nb::none(), nb::none(), nb::none());
  const std::vector<std::int64_t> taken = take_marks(marked, n_trees * n_nodes);
  const auto n_taken = static_cast<std::int64_t>(taken.size());
  std::int64_t* position;
  nb::object indices = new_tensor<std::int64_t>({2, n_taken}, false, &position);
  for (std::int64_t i = 0; i < n_taken; ++i) {
    position[i] = taken[std::size_t(i)] / n_nodes;
    position[n_taken + i] = taken[std::size_t(i)] % n_nodes;
  }
  T* to;
  nb::object values = nb::none(), bias_values = nb::none();
  if (rows != nullptr) {
    values = new_tensor<T>({n_taken, n_columns}, false, &to);
    take_rows(taken, n_columns, rows, to);
  }
  if (biases != nullptr) {
    bias_values = new_tensor<T>({n_taken}, false, &to);
    take_rows(taken, 1, biases, to);
  }
  return nb::make_tuple(std::move(indices), std::move(values), std::move(bias_values));
}

// Returns the gradient of x, the result of `taken_rows` for the splits, and that for the leaves.
template <typename T>
nb::object sparse_gradients(const BackwardCall<T>& call, RowMemory<T>& memory) {
  const Ensemble<T>& ensemble = call.ensemble;
  Gradients<T> to = memory.prepare(ensemble, call.needs);
  nb::object x = call.needs.x ? new_tensor<T>({call.rows.n_rows, ensemble.n_features}, false, &to.x) : nb::none();
  const InUse<T> in_use(memory);
  try {
    nb::gil_scoped_release unlocked;
    call.run(to);
  } catch (...) {
    memory.discard();
    throw;
  }
  nb::object splits = taken_rows(to.split_marked, ensemble.n_trees, ensemble.n_splits(), to.split_weight,
                                 ensemble.n_features, to.split_bias);
  nb::object leaves =
      taken_rows<T>(to.leaf_marked, ensemble.n_trees, ensemble.n_leaves(), to.leaf_weight, ensemble.n_outputs, nullptr);
  return nb::make_tuple(std::move(x), std::move(splits), std::move(leaves));
}

template <typename T>
nb::object backward_of(const TensorView& source, const Tensors& tensors, int activation, double gamma, bool sum_trees,
                       int n_threads, nb::handle tape, Needs needs, nb::handle memory) {
  const std::int64_t n = tensors.n_rows(), m = tensors.n_trees(), k = tensors.n_outputs();
  require(sum_trees ? source.is<T>({n, k}) : source.is<T>({n, m, k}), "grad_output does not match");
  needs.split_bias = needs.split_bias && tensors.has_bias;
  const BackwardCall<T> call{tensors.ensemble<T>(activation, gamma),
                             tensors.rows<T>(),
                             sum_trees,
                             static_cast<const T*>(source.data),
                             nb::cast<const Tape<T>*>(tape),
                             needs,
                             n_threads};
  check_tape(call.tape, call.ensemble, n, sum_trees);
  if (memory.is_none()) return dense_gradients(call);
  RowMemory<T>& shared = nb::cast<RowMemory<T>&>(memory);
  if (shared.in_use) {  // by another thread
    RowMemory<T> own;
    return sparse_gradients(call, own);
  }
  return sparse_gradients(call, shared);
}

// Returns None if a tensor does not have the layout that `look_at` requires: gradients are often broadcast.
nb::object backward_tensors(nb::handle grad_output, nb::handle x, nb::handle split_weight, nb::handle leaf_weight,
                            nb::handle split_bias, int activation, double gamma, bool sum_trees, int n_threads,
                            nb::handle tape, bool needs_x, bool needs_split_weight, bool needs_leaf_weight,
                            bool needs_split_bias, nb::handle memory) {
  Tensors tensors;
  const Needs needs{needs_x, needs_split_weight, needs_leaf_weight, needs_split_bias};
  TensorView source;
  if (!look_at(grad_output, source) || !tensors.look(x, split_weight, leaf_weight, split_bias)) return nb::none();
  const bool is_float = tensors.match<float>();
  require(is_float || tensors.match<double>(), "tensors do not match");
  const auto run = is_float ? &backward_of<float> : &backward_of<double>;
  return run(source, tensors, activation, gamma, sum_trees, n_threads, tape, needs, memory);
}

}  // namespace

void bind_tensors(nb::module_& module) {
  nb::class_<RowMemory<float>>(module, "RowMemoryFloat32").def(nb::init<>());
  nb::class_<RowMemory<double>>(module, "RowMemoryFloat64").def(nb::init<>());
  module.def("use_exchange", &use_exchange, "capsule"_a.none());
  module.def("accepts_tensors", &accepts_tensors, "x"_a, "split_weight"_a, "leaf_weight"_a, "split_bias"_a.none());
  module.def("forward_tensors", &forward_tensors, "x"_a, "split_weight"_a, "leaf_weight"_a, "split_bias"_a.none(),
             "activation"_a, "gamma"_a, "sum_trees"_a, "n_threads"_a, "with_tape"_a);
  module.def("backward_tensors", &backward_tensors, "grad_output"_a, "x"_a, "split_weight"_a, "leaf_weight"_a,
             "split_bias"_a.none(), "activation"_a, "gamma"_a, "sum_trees"_a, "n_threads"_a, "tape"_a.none(),
             "needs_x"_a, "needs_split_weight"_a, "needs_leaf_weight"_a, "needs_split_bias"_a, "memory"_a.none());
}

}  // namespace softwood::bindings

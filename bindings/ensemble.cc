// The passes of the ensemble, for float and double. Arrays are already converted and are written in place.
#include "softwood/ensemble.h"

#include <nanobind/stl/optional.h>

#include <utility>

#include "arrays.h"
#include "softwood/finite.h"
#include "softwood/marked_rows.h"
#include "softwood/thread_pool.h"

namespace softwood::bindings {
namespace {

using namespace nb::literals;

// 0 means the number that set_num_threads has set.
int threads_or_default(int n_threads) { return n_threads > 0 ? n_threads : num_threads(); }

template <typename T>
void bind_forward(nb::module_& module) {
  module.def(
      "forward",
      [](const Matrix<T>& x, const Input<T, 3>& split_weight, const Input<T, 3>& leaf_weight,
         const std::optional<Input<T, 2>>& split_bias, int activation, double gamma, bool sum_trees,
         const AnyOutput<T>& output, Tape<T>* tape, int n_threads, bool check_finite) {
        const Ensemble<T> ensemble = ensemble_of<T>(split_weight, split_bias, leaf_weight, activation, gamma);
        const Rows<T> rows = rows_of<T>(x, ensemble.n_features);
        require(has_output_shape(output, ensemble, rows.n_rows, sum_trees), "output has the wrong shape");
        require(tape == nullptr || tape->key() == nullptr, "the tape must be new: another thread may be reading it");
        T* const destination = output.data();
        Tape<T> filled;
        std::int64_t position = -1;
        {
          nb::gil_scoped_release unlocked;
          if (check_finite) position = first_non_finite(rows.data, rows.n_rows, ensemble.n_features, rows.row_stride);
          if (position < 0) {
            forward(ensemble, rows, sum_trees, destination, tape != nullptr ? &filled : nullptr,
                    threads_or_default(n_threads));
          }
        }
        if (tape != nullptr && tape->key() == nullptr) *tape = std::move(filled);
        return position;
      },
      "x"_a.noconvert(), "split_weight"_a.noconvert(), "leaf_weight"_a.noconvert(), "split_bias"_a.noconvert().none(),
      "activation"_a, "gamma"_a, "sum_trees"_a, "output"_a.noconvert(), "tape"_a.none(), "n_threads"_a,
      "check_finite"_a,
      "Returns -1, or the position of the first value of x that is not finite; in this case nothing is computed.");
}

template <typename T>
void bind_backward(nb::module_& module) {
  module.def(
      "backward",
      [](const AnyInput<T>& grad_output, const Matrix<T>& x, const Input<T, 3>& split_weight,
         const Input<T, 3>& leaf_weight, const std::optional<Input<T, 2>>& split_bias, int activation, double gamma,
         bool sum_trees, const Tape<T>* tape, const std::optional<Output<T, 2>>& grad_x,
         const std::optional<Output<T, 3>>& grad_split_weight, const std::optional<Output<T, 3>>& grad_leaf_weight,
         const std::optional<Output<T, 2>>& grad_split_bias, const std::optional<Output<std::uint8_t, 2>>& split_marked,
         const std::optional<Output<std::uint8_t, 2>>& leaf_marked, int n_threads) {
        const Ensemble<T> ensemble = ensemble_of<T>(split_weight, split_bias, leaf_weight, activation, gamma);
        const Rows<T> rows = rows_of<T>(x, ensemble.n_features);
        const std::int64_t m = ensemble.n_trees, n_splits = ensemble.n_splits(), n_leaves = ensemble.n_leaves();
        require(has_output_shape(grad_output, ensemble, rows.n_rows, sum_trees), "grad_output has the wrong shape");
        require(!grad_x || has_shape(*grad_x, {rows.n_rows, ensemble.n_features}), "grad_x has the wrong shape");
        require(!grad_split_weight || has_shape(*grad_split_weight, {m, n_splits, ensemble.n_features}),
                "grad_split_weight has the wrong shape");
        require(!grad_split_bias || has_shape(*grad_split_bias, {m, n_splits}), "grad_split_bias has the wrong shape");
        require(!grad_leaf_weight || has_shape(*grad_leaf_weight, {m, n_leaves, ensemble.n_outputs}),
                "grad_leaf_weight has the wrong shape");
        require(split_marked ? has_shape(*split_marked, {m, n_splits}) : !grad_split_weight && !grad_split_bias,
                "split_marked must be [m, 2^d - 1]");
        require(leaf_marked ? has_shape(*leaf_marked, {m, n_leaves}) : !grad_leaf_weight,
                "leaf_marked must be [m, 2^d]");
        check_tape(tape, ensemble, rows.n_rows, sum_trees);
        const Gradients<T> gradients{data_or_null(grad_x),          data_or_null(grad_split_weight),
                                     data_or_null(grad_split_bias), data_or_null(grad_leaf_weight),
                                     data_or_null(split_marked),    data_or_null(leaf_marked)};
        const T* const source = grad_output.data();
        nb::gil_scoped_release unlocked;
        backward(ensemble, rows, sum_trees, source, tape, gradients, threads_or_default(n_threads));
      },
      "grad_output"_a.noconvert(), "x"_a.noconvert(), "split_weight"_a.noconvert(), "leaf_weight"_a.noconvert(),
      "split_bias"_a.noconvert().none(), "activation"_a, "gamma"_a, "sum_trees"_a, "tape"_a.none(),
      "grad_x"_a.noconvert().none(), "grad_split_weight"_a.noconvert().none(), "grad_leaf_weight"_a.noconvert().none(),
      "grad_split_bias"_a.noconvert().none(), "split_marked"_a.noconvert().none(), "leaf_marked"_a.noconvert().none(),
      "n_threads"_a);
}

template <typename T>
void bind_reachability(nb::module_& module) {
  using Counts = Output<std::int32_t, 2>;
  module.def(
      "reachability",
      [](const Matrix<T>& x, const Input<T, 3>& split_weight, const std::optional<Input<T, 2>>& split_bias,
         int activation, double gamma, const Counts& leaves, const Counts& internal_nodes,
         const Counts& fractional_nodes, int n_threads) {
        const Ensemble<T> ensemble = ensemble_of<T>(split_weight, split_bias, std::nullopt, activation, gamma);
        const Rows<T> rows = rows_of<T>(x, ensemble.n_features);
        for (const Counts* counts : {&leaves, &internal_nodes, &fractional_nodes})
          require(has_shape(*counts, {rows.n_rows, ensemble.n_trees}), "counts must be [n, m]");
        nb::gil_scoped_release unlocked;
        reachability(ensemble, rows, leaves.data(), internal_nodes.data(), fractional_nodes.data(),
                     threads_or_default(n_threads));
      },
      "x"_a.noconvert(), "split_weight"_a.noconvert(), "split_bias"_a.noconvert().none(), "activation"_a, "gamma"_a,
      "leaves"_a.noconvert(), "internal_nodes"_a.noconvert(), "fractional_nodes"_a.noconvert(), "n_threads"_a);
}

template <typename T>
void bind_clear_rows(nb::module_& module) {
  module.def(
      "clear_rows",
      [](const AnyOutput<std::uint8_t>& marked, const AnyOutput<T>& rows_a, const std::optional<AnyOutput<T>>& rows_b) {
        const auto n_rows = static_cast<std::int64_t>(marked.size());
        const auto size_a = static_cast<std::int64_t>(rows_a.size());
        const auto size_b = rows_b ? static_cast<std::int64_t>(rows_b->size()) : 0;
        require(n_rows > 0 && size_a % n_rows == 0 && size_b % n_rows == 0, "there must be one mark per row");
        nb::gil_scoped_release unlocked;
        clear_rows(marked.data(), n_rows, rows_a.data(), size_a / n_rows, data_or_null(rows_b), size_b / n_rows);
      },
      "marked"_a.noconvert(), "rows_a"_a.noconvert(), "rows_b"_a.noconvert().none());
}

template <typename T>
void bind_first_non_finite(nb::module_& module) {
  module.def(
      "first_non_finite",
      [](const Matrix<T>& x) {
        const Rows<T> rows = rows_of<T>(x, static_cast<std::int64_t>(x.shape(1)));
        const auto n_columns = static_cast<std::int64_t>(x.shape(1));
        nb::gil_scoped_release unlocked;
        return first_non_finite(rows.data, rows.n_rows, n_columns, rows.row_stride);
      },
      "x"_a.noconvert());
}

template <typename T>
void bind_passes(nb::module_& module, const char* tape_name) {
  nb::class_<Tape<T>>(module, tape_name).def(nb::init<>()).def_prop_ro("n_bytes", &Tape<T>::n_bytes);
  bind_forward<T>(module);
  bind_backward<T>(module);
  bind_reachability<T>(module);
  bind_clear_rows<T>(module);
  bind_first_non_finite<T>(module);
}

}  // namespace

void bind_ensemble(nb::module_& module) {
  nb::dict activations;
  for (int code = 0; code < kActivations; ++code) activations[kActivationNames[code]] = code;
  module.attr("ACTIVATIONS") = activations;
  module.attr("MAX_DEPTH") = kMaxDepth;
  bind_passes<float>(module, "TapeFloat32");
  bind_passes<double>(module, "TapeFloat64");
  module.def("instruction_set", &instruction_set);
  module.def("num_threads", &num_threads);
  module.def("set_num_threads", &set_num_threads, "n_threads"_a);
}

}  // namespace softwood::bindings

// Fitted models compiled for prediction; see softwood/predictor.h. Everything that could make the core read past an
// array is checked when the predictor is created, so that a call only checks its own arrays.
#include "softwood/predictor.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>
#include <vector>

#include "encoding.h"
#include "settings.h"

namespace softwood::bindings {
namespace {

using namespace nb::literals;

BaseColumn base_column(const nb::dict& given, std::int64_t n_columns) {
  BaseColumn column{};
  column.kind = choice(given, "kind", BaseKind::target_mean);
  column.source = setting<std::int32_t>(given, "source");
  column.offset = setting<double>(given, "offset");
  column.unit = setting<double>(given, "unit");
  column.n_levels = setting<std::int32_t>(given, "n_levels");
  column.missing_code = setting<std::int32_t>(given, "missing_code");
  column.means = setting<std::vector<float>>(given, "means");
  require(column.source >= 0 && column.source < n_columns, "a base column reads a column that does not exist");
  require(column.n_levels >= 0 && column.missing_code >= -1 && column.missing_code < std::max(1, column.n_levels),
          "a base column has wrong levels");
  require(column.kind != BaseKind::target_mean || static_cast<std::int32_t>(column.means.size()) == column.n_levels + 1,
          "a base column needs a mean for each level and one more");
  return column;
}

PredictionHead head_of(const nb::dict& given, std::int64_t n_outputs) {
  PredictionHead head{};
  head.link = choice(given, "link", Link::logistic);
  head.target_mean = setting<std::vector<double>>(given, "target_mean");
  head.target_scale = setting<std::vector<double>>(given, "target_scale");
  head.quantile_rank = setting<std::vector<std::int32_t>>(given, "quantile_rank");
  const auto n_targets = static_cast<std::int64_t>(head.target_mean.size());
  const auto n_quantiles = static_cast<std::int32_t>(head.quantile_rank.size());
  require(head.target_scale.size() == head.target_mean.size(), "targets need a mean and a scale each");
  if (head.link == Link::identity || head.link == Link::exponential) {
    require(n_targets >= 1 && n_outputs % n_targets == 0, "outputs must be a multiple of targets");
    require(n_quantiles == 0 || n_outputs == n_targets * n_quantiles, "each target needs an output for each quantile");
  } else {
    require(n_targets == 0 && n_quantiles == 0, "a classification has no targets to scale");
    require(head.link != Link::binary || n_outputs == 1, "two classes need one output");
  }
  for (const std::int32_t rank : head.quantile_rank) require(rank >= 0 && rank < n_quantiles, "a rank is out of range");
  return head;
}

// The sum over trees of the largest leaf weight.
double largest_score(const Ensemble<float>& ensemble) {
  double total = 0;
  for (std::int64_t tree = 0, size = ensemble.n_leaves() * ensemble.n_outputs; tree < ensemble.n_trees; ++tree) {
    const float* const leaves = ensemble.leaf_weight + tree * size;
    total +=
        std::abs(*std::max_element(leaves, leaves + size, [](float a, float b) { return std::abs(a) < std::abs(b); }));
  }
  return total;
}

LookupInput lookup_input(const nb::dict& given, std::int64_t n_base_columns) {
  LookupInput input{};
  input.base_column = setting<std::int32_t>(given, "base_column");
  const auto knots = nb::cast<Input<float, 1>>(given["knots"], false);
  input.knots.assign(knots.data(), knots.data() + knots.size());
  input.n_codes = setting<std::int32_t>(given, "n_codes");
  require(input.base_column >= 0 && input.base_column < n_base_columns, "a lookup reads a column that does not exist");
  require(input.n_codes >= 0 && input.n_codes < (1 << 24) && input.knots.size() < (1 << 24), "a lookup is too long");
  for (std::size_t i = 0; i < input.knots.size(); ++i) {
    require(std::isfinite(input.knots[i]) && (i == 0 || input.knots[i - 1] < input.knots[i]), "knots must increase");
  }
  return input;
}

// Whether a number is 2^e, e from -100 to 100, so that products with it are exact.
bool is_power_of_two(float value) {
  int exponent = 0;
  return std::frexp(value, &exponent) == 0.5F && std::abs(exponent) <= 100;
}

// Tables must be in bounds, differ in columns within a split, and have sums that fit 32 bits.
void check_tables(const LookupEnsemble& ensemble, const std::vector<LookupInput>& inputs, std::int64_t n_tables,
                  std::int64_t n_values) {
  std::int64_t done = 0;
  std::vector<std::int64_t> seen(inputs.size(), -1);
  require(ensemble.table_begin[0] == 0, "tables must begin at 0");
  for (std::int64_t split = 0; split < ensemble.n_trees * ensemble.n_splits(); ++split) {
    const std::int64_t begin = ensemble.table_begin[split], end = ensemble.table_begin[split + 1];
    require(begin <= end && end <= n_tables, "tables of splits must follow each other");
    std::int64_t total = 0;
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int32_t column = ensemble.table_column[i];
      require(column >= 0 && column < static_cast<std::int64_t>(inputs.size()), "a table has no lookup column");
      require(std::exchange(seen[static_cast<std::size_t>(column)], split) != split, "a split reads a column twice");
      const std::int64_t n_entries = inputs[static_cast<std::size_t>(column)].n_entries();
      require(n_entries <= n_values - done, "tables have too few values");
      int largest = 0;
      for (std::int64_t e = done; e < done + n_entries; ++e)
        largest = std::max(largest, std::abs(int{ensemble.values[e]}));
      total += largest;
      done += n_entries;
    }
    require(total < (1 << 16), "the values of a split are too large");
  }
  require(ensemble.table_begin[ensemble.n_trees * ensemble.n_splits()] == n_tables && done == n_values,
          "tables must have a value per entry");
}

void add_lookups(Predictor& predictor, const nb::dict& given, const std::vector<LookupInput>& inputs) {
  const auto trees = setting<nb::dict>(given, "lookups");
  const auto table_begin = nb::cast<Input<std::int64_t, 1>>(trees["table_begin"], false);
  const auto table_column = nb::cast<Input<std::int32_t, 1>>(trees["table_column"], false);
  const auto values = nb::cast<Input<std::int16_t, 1>>(trees["values"], false);
  const auto split_bias = nb::cast<Input<float, 2>>(trees["split_bias"], false);
  const auto leaf_weight = nb::cast<Input<float, 3>>(trees["leaf_weight"], false);
  LookupEnsemble ensemble{};
  ensemble.n_trees = static_cast<std::int64_t>(leaf_weight.shape(0));
  ensemble.n_outputs = predictor.n_outputs();
  const auto n_leaves = static_cast<std::uint64_t>(leaf_weight.shape(1));
  ensemble.depth = std::bit_width(n_leaves) - 1;
  ensemble.table_begin = table_begin.data();
  ensemble.table_column = table_column.data();
  ensemble.values = values.data();
  ensemble.split_bias = split_bias.data();
  ensemble.leaf_weight = leaf_weight.data();
  ensemble.activation = choice(given, "activation", static_cast<Activation>(kActivations - 1));
  ensemble.gamma = static_cast<float>(setting<double>(given, "gamma"));
  ensemble.step = static_cast<float>(setting<double>(trees, "step"));
  ensemble.leaf_scale = static_cast<float>(setting<double>(trees, "leaf_scale"));
  const std::int64_t m = ensemble.n_trees;
  require(m >= 1 && std::has_single_bit(n_leaves) && ensemble.depth >= 1 && ensemble.depth <= kMaxDepth &&
              leaf_weight.shape(2) == static_cast<std::size_t>(ensemble.n_outputs),
          "leaf_weight must be [m, 2^d, k]");
  require(has_shape(split_bias, {m, ensemble.n_splits()}) && has_shape(table_begin, {m * ensemble.n_splits() + 1}),
          "split_bias must be [m, 2^d - 1], table_begin [m (2^d - 1) + 1]");
  require(ensemble.gamma > 0 && is_power_of_two(ensemble.step) && is_power_of_two(ensemble.leaf_scale),
          "gamma must be positive, step and leaf_scale powers of two");
  check_tables(ensemble, inputs, static_cast<std::int64_t>(table_column.shape(0)),
               static_cast<std::int64_t>(values.shape(0)));
  const Ensemble<float> leaves{
      .leaf_weight = leaf_weight.data(), .n_trees = m, .n_outputs = ensemble.n_outputs, .depth = ensemble.depth};
  require(largest_score(leaves) * double(ensemble.leaf_scale) <= double(1 << 30), "leaf_scale is too large");
  predictor.add_lookups(ensemble);
}

void add_member(Predictor& predictor, const nb::dict& given, const std::vector<Encoding>& encodings,
                const std::vector<LookupInput>& lookups) {
  const auto offset = nb::cast<Input<float, 1>>(given["offset"], false);
  require(has_shape(offset, {predictor.n_outputs()}), "members differ in outputs");
  predictor.add_member(offset.data());
  if (given.contains("lookups")) return add_lookups(predictor, given, lookups);
  const auto encoding = setting<std::int64_t>(given, "encoding");
  require(encoding >= 0 && encoding < static_cast<std::int64_t>(encodings.size()), "a member has an unknown encoding");
  const std::int64_t p = encodings[static_cast<std::size_t>(encoding)].n_features();
  const auto rounder = setting<double>(given, "rounder");
  double largest = 0;
  for (nb::handle some : setting<nb::list>(given, "trees")) {
    const auto trees = nb::cast<nb::dict>(some);
    const auto split_weight = nb::cast<Input<float, 3>>(trees["split_weight"], false);
    const auto split_bias = nb::cast<Input<float, 2>>(trees["split_bias"], false);
    const auto leaf_weight = nb::cast<Input<float, 3>>(trees["leaf_weight"], false);
    const Ensemble<float> ensemble = ensemble_of<float>(
        split_weight, split_bias, leaf_weight, setting<int>(given, "activation"), setting<double>(given, "gamma"));
    require(ensemble.n_features == p, "a member and its encoding differ in features");
    require(ensemble.n_outputs == predictor.n_outputs(), "members differ in outputs");
    require((ensemble.n_trees << ensemble.depth) * (p + 8) < (std::int64_t{1} << 31), "a member has too many weights");
    largest += largest_score(ensemble);
    require(std::isfinite(rounder) && largest <= rounder / 6, "rounder is too small for the leaves");
    predictor.add_trees(encoding, ensemble, rounder);
  }
}

void make(Predictor* place, std::int64_t n_columns, std::int64_t n_outputs, const nb::list& base,
          const nb::list& encodings, const nb::list& lookups, const nb::list& members, const nb::dict& head) {
  require(n_columns >= 1 && n_outputs >= 1 && nb::len(members) >= 1, "sizes must be positive");
  std::vector<BaseColumn> columns;
  for (nb::handle column : base) columns.push_back(base_column(nb::cast<nb::dict>(column), n_columns));
  std::vector<Encoding> arrays;
  for (nb::handle encoding : encodings) {
    arrays.push_back(encoding_of(nb::cast<nb::dict>(encoding), static_cast<std::int64_t>(columns.size())));
  }
  std::vector<LookupInput> inputs;
  for (nb::handle input : lookups) {
    inputs.push_back(lookup_input(nb::cast<nb::dict>(input), static_cast<std::int64_t>(columns.size())));
  }
  new (place) Predictor(n_columns, n_outputs, std::move(columns), arrays, inputs, head_of(head, n_outputs));
  try {
    for (nb::handle member : members) add_member(*place, nb::cast<nb::dict>(member), arrays, inputs);
  } catch (...) {
    place->~Predictor();
    throw;
  }
}

template <typename T>
std::int64_t predict_row(const Predictor& predictor, const Input<T, 1>& row, const Output<double, 1>& output) {
  const std::int64_t n_columns = predictor.n_columns();
  require(has_shape(row, {n_columns}) && has_shape(output, {predictor.n_predictions()}), "a row has the wrong length");
  const Rows<T> rows{row.data(), 1, n_columns};
  nb::gil_scoped_release unlocked;
  return predictor.predict(rows, false, output.data(), 1);
}

template <typename T>
Rows<T> checked_rows(const Predictor& predictor, const Matrix<T>& x, std::int64_t n_columns, bool raw_scores,
                     const Output<double, 2>& output, int n_threads) {
  const Rows<T> rows = rows_of<T>(x, n_columns);
  const std::int64_t n_outputs = raw_scores ? predictor.n_outputs() : predictor.n_predictions();
  require(has_shape(output, {rows.n_rows, n_outputs}) && n_threads >= 1, "output has the wrong shape");
  return rows;
}

template <typename T>
std::int64_t predict(const Predictor& predictor, const Matrix<T>& x, bool raw_scores, const Output<double, 2>& output,
                     int n_threads) {
  const Rows<T> rows = checked_rows<T>(predictor, x, predictor.n_columns(), raw_scores, output, n_threads);
  nb::gil_scoped_release unlocked;
  return predictor.predict(rows, raw_scores, output.data(), n_threads);
}

void predict_base(const Predictor& predictor, const Matrix<float>& base, bool raw_scores,
                  const Output<double, 2>& output, int n_threads) {
  const Rows<float> rows =
      checked_rows<float>(predictor, base, predictor.n_base_columns(), raw_scores, output, n_threads);
  nb::gil_scoped_release unlocked;
  predictor.predict_base(rows, raw_scores, output.data(), n_threads);
}

}  // namespace

void bind_predictor(nb::module_& module) {
  nb::class_<Predictor>(module, "Predictor")
      .def("__init__", &make, "n_columns"_a, "n_outputs"_a, "base"_a, "encodings"_a, "lookups"_a, "members"_a, "head"_a)
      .def_prop_ro("n_bytes", &Predictor::n_bytes)
      .def("predict_row", &predict_row<double>, "row"_a.noconvert(), "output"_a.noconvert())
      .def("predict_row", &predict_row<float>, "row"_a.noconvert(), "output"_a.noconvert())
      .def("predict", &predict<double>, "x"_a.noconvert(), "raw_scores"_a, "output"_a.noconvert(), "n_threads"_a)
      .def("predict", &predict<float>, "x"_a.noconvert(), "raw_scores"_a, "output"_a.noconvert(), "n_threads"_a)
      .def("predict_base", &predict_base, "base"_a.noconvert(), "raw_scores"_a, "output"_a.noconvert(), "n_threads"_a);
}

}  // namespace softwood::bindings

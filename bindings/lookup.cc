// Trees of lookups; see softwood/lookup.h. Entries, columns and rows are all checked here.
#include "softwood/lookup.h"

#include <nanobind/stl/optional.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "members.h"

namespace softwood::bindings {
namespace {

using namespace nb::literals;

// The bases of all columns, copied from a dict: n_entries, n_knots, n_levels (int32) and lazy (uint8), one per column;
// ramp_scale, ramp_mean, linear, level_scale, level_mean (float32), one per entry of all columns.
class Columns {
 public:
  explicit Columns(const nb::dict& given) {
    const auto n_entries = nb::cast<Input<std::int32_t, 1>>(required(given, "n_entries"), false);
    const auto q = static_cast<std::int64_t>(n_entries.shape(0));
    require(q >= 1, "there must be columns");
    const std::int32_t* const n_knots = column_array<std::int32_t>(given, "n_knots", q);
    const std::int32_t* const n_levels = column_array<std::int32_t>(given, "n_levels", q);
    const std::uint8_t* const lazy = column_array<std::uint8_t>(given, "lazy", q);
    const std::int32_t* const sign =
        given.contains("monotone_sign") ? column_array<std::int32_t>(given, "monotone_sign", q) : nullptr;
    std::int64_t total = 0;
    for (std::int64_t c = 0; c < q; ++c) {
      const std::int32_t entries = n_entries.data()[c];
      const std::string name = "column " + std::to_string(c);
      if (entries < 1 || entries > (1 << 16)) refuse(name + " must have 1 to 65536 entries");
      if (n_knots[c] < 0 || n_knots[c] > entries) refuse(name + " must have at most as many knots as entries");
      if (n_levels[c] < 0 || n_levels[c] > entries) refuse(name + " must have at most as many levels as entries");
      if (n_knots[c] + n_levels[c] == 0) refuse(name + " must have knots or levels");
      if (lazy[c] != 0 && (n_knots[c] != 0 || n_levels[c] != entries)) {
        refuse(name + " is lazy, so it must have no knots and a level for each entry");
      }
      if (sign != nullptr && sign[c] != 0 && (n_knots[c] < 1 || n_levels[c] > entries - n_knots[c])) {
        refuse(name + " is monotone, so it must have knots, and no levels at them");
      }
      columns_.push_back({.n_entries = entries,
                          .n_knots = n_knots[c],
                          .n_levels = n_levels[c],
                          .lazy = lazy[c] != 0,
                          .ramp_scale = nullptr,
                          .ramp_mean = nullptr,
                          .linear = nullptr,
                          .level_scale = nullptr,
                          .level_mean = nullptr,
                          .monotone_sign = sign != nullptr ? sign[c] : 0});
      total += entries;
    }
    const float* const ramp_scale = copy(given, "ramp_scale", total);
    const float* const ramp_mean = copy(given, "ramp_mean", total);
    const float* const linear = copy(given, "linear", total);
    const float* const level_scale = copy(given, "level_scale", total);
    const float* const level_mean = copy(given, "level_mean", total);
    std::int64_t first = 0;
    for (LookupColumn& column : columns_) {
      column.ramp_scale = ramp_scale + first;
      column.ramp_mean = ramp_mean + first;
      column.linear = linear + first;
      column.level_scale = level_scale + first;
      column.level_mean = level_mean + first;
      first += column.n_entries;
    }
  }

  const std::vector<LookupColumn>& all() const { return columns_; }

  // Numbers of columns of some blocks, all of which exist.
  void check_block_columns(const AnyInput<std::int32_t>& block_columns) const {
    for (std::size_t i = 0; i < block_columns.size(); ++i) {
      const std::int32_t column = block_columns.data()[i];
      require(column >= 0 && column < static_cast<std::int32_t>(columns_.size()),
              "block_columns must be numbers of columns");
    }
  }

  void check_row(const std::uint32_t* cells, std::int64_t row) const {
    const auto q = static_cast<std::int64_t>(columns_.size());
    for (std::int64_t c = 0; c < q; ++c) {
      const std::uint32_t cell = cells[row * q + c];
      const auto entry = static_cast<std::int32_t>(cell & 0xffff);
      if (entry >= columns_[c].n_entries || (cell >> 16 != 0 && entry + 1 >= columns_[c].n_knots)) {
        refuse("the cell in row " + std::to_string(row) + ", column " + std::to_string(c) +
               " must have an entry of its column, and a fraction only between two knots");
      }
    }
  }

 private:
  static nb::object required(const nb::dict& given, const char* name) {
    if (!given.contains(name)) refuse(std::string("array ") + name + " is missing");
    return given[name];
  }

  template <typename T>
  static const T* column_array(const nb::dict& given, const char* name, std::int64_t n) {
    const auto array = nb::cast<Input<T, 1>>(required(given, name), false);
    if (!has_shape(array, {n})) refuse(std::string("array ") + name + " must have one value per column");
    return array.data();
  }

  const float* copy(const nb::dict& given, const char* name, std::int64_t n) {
    const auto array = nb::cast<Input<float, 1>>(required(given, name), false);
    if (!has_shape(array, {n})) refuse(std::string("array ") + name + " must have one value per entry");
    copies_.emplace_back(array.data(), array.data() + n);
    return copies_.back().data();
  }

  std::vector<LookupColumn> columns_;
  std::vector<std::vector<float>> copies_;
};

// A view of a table of cells [n, q] and its labels.
LookupSamples samples_of(const nb::dict& samples, const Columns& columns, const Loss<float>& loss) {
  const auto cells = nb::cast<Input<std::uint32_t, 2>>(samples["cells"], false);
  const auto n = static_cast<std::int64_t>(cells.shape(0)), q = static_cast<std::int64_t>(columns.all().size());
  require(has_shape(cells, {n, q}), "cells must have one column per lookup column");
  const LookupSamples result{cells.data(), labels_of<float>(samples, n, loss)};
  for (std::int64_t i = 0; i < result.labels.n_rows; ++i) columns.check_row(result.cells, result.labels.row(i));
  return result;
}

LookupShape shape_of(const nb::dict& settings, const AnyInput<std::int32_t>& block_columns) {
  LookupShape shape{setting<std::int64_t>(settings, "n_trees"), setting<int>(settings, "depth"), 0};
  require(shape.n_trees >= 1 && shape.n_trees < (1 << 24), "n_trees must be positive");
  require(shape.depth >= 1 && shape.depth <= kMaxDepth, "depth must be 1 to 20");
  require(block_columns.ndim() == 2 && block_columns.shape(1) >= 1 &&
              static_cast<std::int64_t>(block_columns.shape(0)) == shape.n_trees * shape.n_blocks(),
          "block_columns must be [trees * blocks per tree, columns per block]");
  shape.n_block_columns = static_cast<std::int64_t>(block_columns.shape(1));
  return shape;
}

LookupParameters parameters_of(const nb::dict& arrays, const LookupSettings& settings, std::int64_t n_rows) {
  const LookupShape& shape = settings.shape;
  const std::int64_t n_blocks = shape.n_trees * shape.n_blocks(), n_leaf_blocks = shape.n_trees * shape.n_leaf_blocks();
  const std::int64_t k = settings.loop.loss.n_outputs;
  const bool averaging = settings.adam.average_decay > 0;
  LookupParameters parameters{};
  parameters.table = parameter<float>(arrays, "table", {n_rows, kBlockLanes}, averaging, false);
  parameters.split_bias = parameter<float>(arrays, "split_bias", {n_blocks, kBlockLanes}, averaging, false);
  parameters.leaf_weight = parameter<float>(arrays, "leaf_weight", {n_leaf_blocks, k, kBlockLanes}, averaging, false);
  parameters.offset = array<float>(arrays, "offset", {k});
  if (averaging) {
    parameters.table_step = array<std::int64_t>(arrays, "table_step", {n_rows});
    parameters.split_step = array<std::int64_t>(arrays, "split_step", {n_blocks});
    parameters.leaf_step = array<std::int64_t>(arrays, "leaf_step", {n_leaf_blocks});
  }
  return parameters;
}

class LookupMember {
 public:
  using Number = float;

  LookupMember(const nb::dict& given, const nb::dict& column_arrays, nb::dict arrays, nb::dict train,
               nb::object validation, nb::object custom)
      : columns(column_arrays) {
    const auto block_columns = nb::cast<AnyInput<std::int32_t>>(arrays["block_columns"], false);
    const LookupSettings settings{.shape = shape_of(given, block_columns),
                                  .activation = choice(given, "activation", static_cast<Activation>(kActivations - 1)),
                                  .adam = adam_settings_of(given),
                                  .loop = loop_settings_of<float>(given, custom)};
    columns.check_block_columns(block_columns);
    const Loss<float>& loss = settings.loop.loss;
    const LookupSamples train_rows = samples_of(train, columns, loss);
    require(train_rows.labels.n_rows >= 1, "there must be training rows");
    LookupSamples held_out{};
    float* scores = nullptr;
    if (!validation.is_none()) {
      const auto dict = nb::cast<nb::dict>(validation);
      held_out = samples_of(dict, columns, loss);
      scores = scores_of(dict, held_out.labels, loss);
    }
    const auto n_block_columns = static_cast<std::int64_t>(block_columns.size());
    const std::int64_t n_rows = n_table_rows(columns.all(), block_columns.data(), n_block_columns);
    const LookupParameters parameters = parameters_of(arrays, settings, n_rows);
    trainer = make_lookup_trainer(settings, columns.all(), block_columns.data(), parameters, train_rows, held_out);
    trainer->validation_scores = scores;
    owners = nb::make_tuple(copy_of(arrays), copy_of(train), copy_of(validation));
  }

  Columns columns;
  std::unique_ptr<Trainer<float>> trainer;
  bool running = false;
  nb::object owners;  // of all memory that the trainer sees, whatever becomes of the caller's dicts
};

void build_values(const nb::dict& column_arrays, const Input<std::int32_t, 2>& block_columns,
                  const Input<float, 2>& table, const Output<float, 2>& values, int n_threads) {
  const Columns columns(column_arrays);
  columns.check_block_columns(AnyInput<std::int32_t>(block_columns));
  const auto n = static_cast<std::int64_t>(block_columns.size());
  require(has_shape(table, {n_table_rows(columns.all(), block_columns.data(), n), kBlockLanes}),
          "table must have a row per weight of each block's columns");
  require(has_shape(values, {n_value_rows(columns.all(), block_columns.data(), n), kBlockLanes}),
          "values must have a row per entry of each block's columns");
  require(n_threads >= 1, "n_threads must be positive");
  nb::gil_scoped_release unlocked;
  lookup_values(columns.all(), block_columns.data(), n, table.data(), values.data(), n_threads);
}

// How cells are made of base columns: base_column, n_knots, n_codes, missing_entry, unseen_entry (int32), one per
// column, and knots (float32), those of all columns. Views of the arrays in the dict.
std::vector<LookupSource> sources_of(const nb::dict& given) {
  const auto base_column = nb::cast<Input<std::int32_t, 1>>(given["base_column"], false);
  const auto knots = nb::cast<Input<float, 1>>(given["knots"], false);
  const auto q = static_cast<std::int64_t>(base_column.shape(0));
  const auto integers = [&](const char* name) {
    const auto array = nb::cast<Input<std::int32_t, 1>>(given[name], false);
    if (!has_shape(array, {q})) refuse(std::string("array ") + name + " must have one value per column");
    for (std::int64_t c = 0; c < q; ++c) {
      if (array.data()[c] < 0 || array.data()[c] > (1 << 16)) refuse(std::string(name) + " must be 0 to 65536");
    }
    return array.data();
  };
  const std::int32_t *const n_knots = integers("n_knots"), *const n_codes = integers("n_codes"),
                            *const missing = integers("missing_entry"), *const unseen = integers("unseen_entry");
  std::vector<LookupSource> sources;
  std::int64_t first = 0;
  for (std::int64_t c = 0; c < q; ++c) {
    require(base_column.data()[c] >= 0, "base_column must not be negative");
    require(missing[c] < (1 << 16) && unseen[c] < (1 << 16), "entries must be below 65536");
    require(first + n_knots[c] <= static_cast<std::int64_t>(knots.shape(0)), "there must be n_knots knots per column");
    for (std::int64_t i = first + 1; i < first + n_knots[c]; ++i) {
      require(knots.data()[i - 1] < knots.data()[i], "knots of a column must increase");
    }
    sources.push_back({base_column.data()[c], static_cast<std::uint32_t>(n_knots[c]), knots.data() + first,
                       static_cast<std::uint32_t>(n_codes[c]), static_cast<std::uint32_t>(missing[c]),
                       static_cast<std::uint32_t>(unseen[c])});
    first += n_knots[c];
  }
  require(first == static_cast<std::int64_t>(knots.shape(0)), "there must be n_knots knots per column");
  return sources;
}

Rows<float> base_of(const Matrix<float>& base, const std::vector<LookupSource>& sources) {
  const auto n_columns = static_cast<std::int64_t>(base.shape(1));
  for (const LookupSource& source : sources) {
    require(source.base_column < n_columns, "a column reads a base column that does not exist");
  }
  return rows_of<float>(base, n_columns);
}

void make_cells(const nb::dict& given, const Matrix<float>& base, const Output<std::uint32_t, 2>& cells,
                int n_threads) {
  const std::vector<LookupSource> sources = sources_of(given);
  const Rows<float> rows = base_of(base, sources);
  require(has_shape(cells, {rows.n_rows, static_cast<std::int64_t>(sources.size())}) && n_threads >= 1,
          "cells must have a row per base row and a column per lookup column");
  nb::gil_scoped_release unlocked;
  lookup_cells(sources, rows, cells.data(), n_threads);
}

}  // namespace

void bind_lookup(nb::module_& module) {
  nb::class_<LookupMember> member(module, "LookupMember");
  member.def(nb::init<const nb::dict&, const nb::dict&, nb::dict, nb::dict, nb::object, nb::object>(), "settings"_a,
             "columns"_a, "arrays"_a, "train"_a, "validation"_a.none(), "custom_loss"_a.none());
  bind_protocol(member);
  module.def("lookup_values", &build_values, "columns"_a, "block_columns"_a.noconvert(), "table"_a.noconvert(),
             "values"_a.noconvert(), "n_threads"_a);
  module.def("lookup_cells", &make_cells, "sources"_a, "base"_a.noconvert(), "cells"_a.noconvert(), "n_threads"_a);
}

}  // namespace softwood::bindings

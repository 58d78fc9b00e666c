// Encodings of base matrices; see softwood/encoding.h.
#include "encoding.h"

namespace softwood::bindings {

using namespace nb::literals;

Encoding encoding_of(const nb::dict& arrays, std::int64_t n_base_columns) {
  const auto source = nb::cast<Input<std::int32_t, 1>>(arrays["source"], false);
  const auto kind = nb::cast<Input<std::uint8_t, 1>>(arrays["kind"], false);
  const auto p = static_cast<std::int64_t>(source.shape(0));
  require(p >= 1 && has_shape(kind, {p}), "an encoding needs features");
  const auto column = [&](const char* name) {
    const auto array = nb::cast<Input<float, 1>>(arrays[name], false);
    require(has_shape(array, {p}), "the arrays of an encoding must have the same length");
    return std::vector<float>(array.data(), array.data() + p);
  };
  Encoding encoding{{source.data(), source.data() + p},
                    column("start"),
                    column("rate"),
                    column("mean"),
                    column("scale"),
                    {},
                    {},
                    true};
  if (arrays.contains("bound")) encoding.bound = column("bound");
  for (std::int64_t f = 0; f < p; ++f) {
    const std::int32_t from = encoding.source[static_cast<std::size_t>(f)];
    encoding.in_order = encoding.in_order && from == f;
    require(from >= 0 && from < n_base_columns, "a feature reads a column that does not exist");
    require(kind.data()[f] < kFeatureKinds, "a feature has an unknown kind");
    require(f == 0 || kind.data()[f] >= kind.data()[f - 1], "features must be sorted by kind");
    for (std::size_t k = kind.data()[f]; k < kFeatureKinds; ++k) encoding.begin[k + 1] = f + 1;
  }
  return encoding;
}

void bind_encoding(nb::module_& module) {
  module.def(
      "encode",
      [](const nb::dict& arrays, const Matrix<float>& base, const Output<float, 2>& features, int n_threads) {
        const auto n_base_columns = static_cast<std::int64_t>(base.shape(1));
        const Encoding encoding = encoding_of(arrays, n_base_columns);
        require(base.size() == 0 || n_base_columns == 1 || base.stride(1) == 1,
                "the columns of a row must be contiguous");
        const Rows<float> rows{base.data(), static_cast<std::int64_t>(base.shape(0)), base.stride(0)};
        require(has_shape(features, {rows.n_rows, encoding.n_features()}), "features has the wrong shape");
        require(n_threads >= 1, "n_threads must be positive");
        nb::gil_scoped_release unlocked;
        encode(encoding, rows, features.data(), n_threads);
      },
      "arrays"_a, "base"_a.noconvert(), "features"_a.noconvert(), "n_threads"_a);
}

}  // namespace softwood::bindings

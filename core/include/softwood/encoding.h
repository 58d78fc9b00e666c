// From a row of the base matrix to the inputs of the trees: the compiled half of
// src/softwood/tabular/encoding/features.py, which defines the kinds of features. Done row by row, so that training
// needs no encoded copy of a long table.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "softwood/ensemble.h"

namespace softwood {

enum class FeatureKind : int { linear = 0, soft_clip = 1, ramp = 2, level = 3, missing = 4 };
inline constexpr int kFeatureKinds = 5;

// p features, sorted by kind; each array is [p].
struct Encoding {
  std::vector<std::int32_t> source;  // index of the base column
  std::vector<float> start, rate, mean, scale;
  std::vector<float>
      bound;  // unless empty, the weights include the scale: features are r - mean, clipped to the bounds
  std::array<std::int64_t, kFeatureKinds + 1> begin;  // features of kind i are begin[i], ..., begin[i + 1] - 1
  bool in_order = false;                              // source[f] is known to be f for all features

  std::int64_t n_features() const { return begin[kFeatureKinds]; }
};

// Index of the first infinity in a row, or -1.
template <typename T>
std::int64_t first_infinity(const T* row, std::int64_t n);

// Writes the p features of one base row. A NaN in `base` is a missing value; features are finite.
template <typename T>
void encode_row(const Encoding& encoding, const T* base, T* features);

// Writes the features of all rows, [n, p].
template <typename T>
void encode(const Encoding& encoding, const Rows<T>& base, T* features, int n_threads);

}  // namespace softwood

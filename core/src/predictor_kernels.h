// The hot loop of prediction: the trees of one member on a block of rows. Compiled for the baseline and for AVX2, whose
// vectors hold just the partial sums of a split; see softwood/predictor.h for the order of sums.
#pragma once

#include <cstdint>

#include "softwood/ensemble.h"

namespace softwood {

inline constexpr std::int64_t kPredictorLanes = 8;  // partial sums of a split, on every instruction set

// The trees of a member, level by level: rows of level l begin at row m (2^l - 1) and stand tree by tree. A row has the
// split's weights, its bias as the weight of a feature that is always 1, and zeros up to a multiple of kPredictorLanes.
struct PredictorTrees {
  const float* split_rows;   // [m (2^d - 1), width], aligned to 64 bytes
  const float* leaf_weight;  // [m, 2^d, k]
  std::int64_t n_trees, width, n_outputs;
  int depth;
  Activation activation;
  float gamma;
  double score_scale;  // see add_scores
};

// (node, row) pairs of one level, or room for them. Arrays have room for 2 * kPredictorLanes more.
struct Arrivals {
  std::int32_t* node;  // tree * 2^level + place in the level
  std::int32_t* row;
  float* probability;
  // What stands `i` entries further on.
  // Always inline: it is compiled for several instruction sets under one name.
  __attribute__((always_inline)) Arrivals from(std::int64_t i) const { return {node + i, row + i, probability + i}; }
};

inline constexpr std::int64_t kMostRows = 64;  // of a block

// Lists longer than this are cut, and each piece followed down to its leaves before the next: memory stays in
// proportion to depth, however many leaves are reached.
inline constexpr std::int64_t kLongestList = 2048;

// Entries that `Arrivals` needs for trees of this depth.
constexpr std::int64_t scratch_entries(int depth) { return (depth + 1) * (2 * kLongestList + 4 * kPredictorLanes); }

struct PredictorKernels {
  // sums [n, k] += score_scale * (sum over trees), for inputs x [n, width], 1 <= n <= kMostRows. Each leaf's share
  // is cut to a whole number, so that the order of the leaves does not matter. `scratch` has room as
  // scratch_entries says, `tiles` for kMostRows * width numbers.
  void (*add_scores)(const PredictorTrees& trees, const float* x, std::int64_t n_rows, std::int64_t* sums, float* tiles,
                     Arrivals scratch);
};

const PredictorKernels& predictor_kernels();

namespace baseline {
extern const PredictorKernels predictor_kernels;
}
#if defined(__x86_64__)
namespace avx2 {
extern const PredictorKernels predictor_kernels;
}
#endif

}  // namespace softwood

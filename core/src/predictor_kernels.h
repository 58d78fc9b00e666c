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
  const float* split_rows;    // [m (2^d - 1), width], aligned to 64 bytes
  const double* leaf_weight;  // [m, 2^d, k]
  std::int64_t n_trees, width, n_outputs;
  int depth;
  Activation activation;
  float gamma;
  double rounder;  // see add_scores
};

inline constexpr std::int64_t kMostRows = 64;  // of a block
inline constexpr int kRowBits = 6;

// Pairs of one level that wait to be followed further down. When a list is full, some of it is followed down to the
// leaves: memory stays in proportion to depth, however many leaves are reached.
struct WaitingPairs {
  std::int32_t* place;  // (tree * 2^level + place in the level) * kMostRows + row, or without the row if there is one
  float* probability;
  std::int64_t count;
};
inline constexpr std::int64_t kMostWaiting = 4096;
inline constexpr std::int64_t kWaitingRoom = kMostWaiting + 2 * kPredictorLanes;  // entries that a list needs

struct PredictorScratch {
  WaitingPairs waiting[kMaxDepth + 1];  // empty; one list a level, leaves included
  float* tiles;                         // kMostRows * width numbers
};

struct PredictorKernels {
  // sums [k, kMostRows] += sum over trees, for inputs x [n, width], 1 <= n <= kMostRows. Each leaf's share is rounded
  // to a multiple of rounder / (3 * 2^51), small enough for sums of them to be exact: the order of the leaves does not
  // matter.
  void (*add_scores)(const PredictorTrees& trees, const float* x, std::int64_t n_rows, double* sums,
                     PredictorScratch& scratch);
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

// All of them, from the narrowest to the widest.
inline constexpr const PredictorKernels* kPredictorKernels[] = {
    &baseline::predictor_kernels,
#if defined(__x86_64__)
    &avx2::predictor_kernels,
#endif
};

}  // namespace softwood

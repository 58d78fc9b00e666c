// The hot loop of prediction: the trees of one member on a block of rows. Compiled for the baseline and for AVX2, whose
// vectors hold exactly the partial sums of a split value; softwood/predictor.h defines the order of sums.
#pragma once

#include <cstdint>

#include "dispatch.h"
#include "softwood/ensemble.h"

namespace softwood {

inline constexpr std::int64_t kPartialSums = 8;  // of a split value, on every instruction set

// The trees of a member, level by level: the rows of level l begin at row m (2^l - 1), one tree after the other. A row
// holds the weights of a split, its bias as the weight of a feature that is always 1, and zeros up to a multiple of
// kPartialSums.
struct PredictorTrees {
  const float* split_rows;    // [m (2^d - 1), width], aligned to 64 bytes
  const double* leaf_weight;  // [m, 2^d, k]
  std::int64_t n_trees, width, n_outputs;
  int depth;
  Activation activation;
  float gamma;
  double rounder;  // see add_scores
};

inline constexpr int kRowBits = 6;
inline constexpr std::int64_t kMaxRows = 1 << kRowBits;  // of a block

// (node, row) pairs of one level that are still to be followed. When the list of a level is full, some of its pairs are
// followed down to the leaves first: memory is proportional to depth, however many leaves are reached.
struct WaitingPairs {
  std::int32_t* pair;  // (tree * 2^level + index in the level) << kRowBits | row; in a block of one row without the row
  float* probability;
  std::int64_t count;
};
inline constexpr std::int64_t kMaxWaiting = 4096;
inline constexpr std::int64_t kWaitingRoom = kMaxWaiting + 2 * kPartialSums;  // length of the arrays

struct PredictorScratch {
  WaitingPairs waiting[kMaxDepth + 1];  // by level, including the leaves; empty between calls
  float* panels;                        // kMaxRows * width numbers
};

struct PredictorKernels {
  // sums [k, kMaxRows] += sum over trees, for inputs x [n, width], 1 <= n <= kMaxRows. The contribution of each leaf is
  // rounded to a multiple of rounder / (3 * 2^51), so that the sums are exact and do not depend on the order of the
  // leaves.
  void (*add_scores)(const PredictorTrees& trees, const float* x, std::int64_t n_rows, double* sums,
                     PredictorScratch& scratch);
};

// predictor_kernels() gives those for this machine.
SOFTWOOD_DECLARE_NARROW_TABLE(PredictorKernels, predictor_kernels)

}  // namespace softwood

// The hot loop of prediction by lookup trees: all trees of one ensemble on a slice of rows. Trees are cut into blocks
// of 15 splits and 16 leaves, as in training (softwood/lookup.h); softwood/predictor.h defines the arithmetic.
#pragma once

#include <cstdint>

#include "arena.h"
#include "dispatch.h"
#include "softwood/lookup.h"

namespace softwood {

// A cell of a row. The weights of its entry and of the next one, kOneFraction - f and f, are the low and high half.
struct ScoringCell {
  std::uint32_t offset;  // of its entry from the beginning of a table, in bytes
  std::uint32_t weights;
};

// One column of a block. Offsets are in bytes: the inner loop then has no instruction that computes an address.
struct ScoringSlot {
  const std::int16_t* values;   // of the first entry
  std::uint64_t column_offset;  // of the column's cell in a row of cells
};

// Rows of values [16, 2], aligned to 64 bytes: those of 16 splits at an entry, each beside that at the next entry. A
// split that does not read a column has zeros, one that does not exist has the bias +infinity.
struct ScoringBlock {
  const ScoringSlot* slots;
  std::int64_t n_slots;
  const float* bias;  // [16]
};

struct ScoringTrees {
  LookupShape shape;
  const ScoringBlock* blocks;  // [m * blocks]
  const float* leaf_weight;    // [m * leaf blocks, k, 16], scaled for sums of integers
  std::int64_t n_outputs;
  Activation activation;
  float gamma;
  float unit;  // of sums of values times weights: a power of two
};

inline constexpr std::int64_t kMaxScoringRows = 512;

struct ScoringKernels {
  // sums [n, k, 16] += the rounded contributions of leaves, for cells [n, n_columns], n <= kMaxScoringRows; the sum
  // over the 16 lanes is that over leaves. The arena is left as it was.
  void (*add_scores)(const ScoringTrees& trees, const ScoringCell* cells, std::int64_t n_columns, std::int64_t n_rows,
                     std::int32_t* sums, Arena& arena);
};

// The same bits on every instruction set.
SOFTWOOD_DECLARE_TABLE(ScoringKernels, scoring_kernels)

}  // namespace softwood

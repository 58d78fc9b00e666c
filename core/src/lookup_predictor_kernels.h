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
  std::uint32_t offset;  // of its entry from the beginning of a table of bytes, in bytes
  std::uint32_t weights;
};

// What a slice of rows has in one column, where most rows have the same cell. `others` are the rows with another one.
struct OtherCell {
  std::int32_t row;
  ScoringCell cell;
};
struct UsualCell {
  ScoringCell cell;
  const OtherCell* others;  // null if the column has no usual cell
  std::int64_t n_others;
};

// A slice of rows. Long slices have `usual` [n_columns]: sums then begin at those of usual cells.
struct ScoringRows {
  const ScoringCell* cells;  // [n, n_columns]
  std::int64_t n_rows, n_columns;
  const UsualCell* usual;
};

// One column of a block. Offsets are in bytes: the inner loop then has no instruction that computes an address.
struct ScoringSlot {
  const void* values;           // of the first entry
  std::uint64_t column_offset;  // of the column's cell in a row of cells
};

// Rows of values [16, 2]: those of 16 splits at an entry, each beside that at the next entry. They are bytes, counted
// from the least value of their split and aligned to 32 bytes, in all slots where bytes are enough, and numbers of 16
// bits in others, aligned to 64 bytes. A split that does not read a column has zeros, one that does not exist has the
// bias +infinity.
struct ScoringBlock {
  const ScoringSlot* slots;  // first those of bytes
  std::int64_t n_byte_slots, n_slots;
  const std::int32_t* start;  // [16], of the sums: what the least values make
  std::int64_t start_stride;  // from a row's start to that of the next one; 0 if all have the same
  const float* bias;          // [16]
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
// From this many rows on, usual cells are worth looking for.
inline constexpr std::int64_t kMinUsualRows = 64;

struct ScoringKernels {
  // sums [n, k, 16] += the rounded contributions of leaves, for n <= kMaxScoringRows; the sum over the 16 lanes is that
  // over leaves. The arena is left as it was.
  void (*add_scores)(const ScoringTrees& trees, const ScoringRows& rows, std::int32_t* sums, Arena& arena);
};

// The same bits on every instruction set.
SOFTWOOD_DECLARE_TABLE(ScoringKernels, scoring_kernels)

}  // namespace softwood

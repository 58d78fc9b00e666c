// Trees whose splits are sums of lookups: what a column contributes to a split is read from a table, at a cost that
// does not depend on the number of its knots or levels.
//
// Legend: n samples, q columns, k outputs, m trees, d depth. A cell is a uint32: the low 16 bits are its entry e, the
// high 16 bits 65535 times its fraction f. A split is
//
//   t = b + sum over the columns c of its block of (1 - f) V_c[e] + f V_c[e + 1],
//
// and a sample goes left with probability S(t). V_c has one value per entry of the column and is made of trained
// weights w. The entries are first n_knots knots, then others (a missing cell, the levels of a category):
//
//   V_c[e] = sum over r < n_knots - 1 of w_r ramp_scale_r ([e > r] - ramp_mean_r) + w_lin linear_e    (knots only)
//          + w_e level_scale_e  (the last n_levels entries only)  -  sum over levels j of w_j level_scale_j
//          level_mean_j
//
// Only cells between two knots have a fraction. A `lazy` column has levels only and is not centred (the last sum is
// left out); a step changes only the levels that got a gradient, so that thousands of them cost nothing.
//
// Blocks. A tree is cut into blocks of at most 4 levels of splits. The root block has d - 4 floor((d - 1) / 4) levels,
// all others have 4. The 15 splits of a block in heap order are lanes 0 to 14 of one vector of 16, its 16 leaves those
// of another. In a root block of fewer levels the lower splits always go left and are never trained. Each block has its
// own columns, and is computed only for the samples that reach it. Blocks of a tree stand level by level: the root, its
// children from left to right, and so on; those of the last level are the leaf blocks.
//
// All arrays are owned by the caller. Results are bit-identical for every number of threads.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "softwood/trainer.h"

namespace softwood {

inline constexpr int kBlockLevels = 4;
inline constexpr std::int64_t kBlockLanes = 16;

// The basis of one column. All arrays are [n_entries]; ramp r stands at entry r.
struct LookupColumn {
  std::int32_t n_entries;
  std::int32_t n_knots;   // 0 for a category
  std::int32_t n_levels;  // the last entries, which have a weight of their own
  bool lazy;
  const float* ramp_scale;
  const float* ramp_mean;
  const float* linear;
  const float* level_scale;  // 0: the entry has no weight in effect
  const float* level_mean;
  // 1: scores must rise with the column's knots, -1: fall, 0: either; see lookup_monotone.h. With a sign, entries of
  // knots have no level.
  int monotone_sign = 0;

  std::int32_t n_ramps() const { return n_knots > 1 ? n_knots - 1 : 0; }
  // Weights of the column: ramps, linear term, levels, in this order.
  std::int32_t n_parameters() const { return n_ramps() + (n_knots > 0 ? 1 : 0) + n_levels; }
};

// Which blocks there are.
struct LookupShape {
  std::int64_t n_trees;
  int depth;
  std::int64_t n_block_columns;  // of each block

  int n_block_levels() const { return (depth - 1) / kBlockLevels + 1; }
  int root_levels() const { return depth - kBlockLevels * (n_block_levels() - 1); }
  // Of one tree.
  std::int64_t n_leaf_blocks() const { return depth > kBlockLevels ? std::int64_t{1} << (depth - kBlockLevels) : 1; }
  std::int64_t n_blocks() const { return first_block(n_block_levels()); }
  std::int64_t first_block(int level) const {
    std::int64_t first = 0;
    for (int l = 0, exponent = 0; l < level; ++l) {
      first += std::int64_t{1} << exponent;
      exponent += l == 0 ? root_levels() : kBlockLevels;
    }
    return first;
  }
};

struct LookupParameters {
  Parameter<float> table;        // [rows, 16]: the weights of each block's columns, in the order of block_columns
  Parameter<float> split_bias;   // [m * blocks, 16]
  Parameter<float> leaf_weight;  // [m * leaf blocks, k, 16]
  std::int64_t* table_step;      // [rows]: the step up to which a row's average is written; null without averaging
  std::int64_t* split_step;      // [m * blocks]
  std::int64_t* leaf_step;       // [m * leaf blocks]
  const float* offset;           // [k], added to the output, not trained
};

struct LookupSettings {
  LookupShape shape;
  Activation activation;
  AdamSettings adam;  // penalties of splits apply to the table, not to biases. Updates are lazy by blocks: see Updates
  LoopSettings<float> loop;
};

// Rows of cells and their labels.
struct LookupSamples {
  const std::uint32_t* cells;  // [rows of the table, q]
  Labels<float> labels;
};

// `columns` and `block_columns` [m * blocks, n_block_columns] are copied, the columns' arrays are not.
std::unique_ptr<Trainer<float>> make_lookup_trainer(const LookupSettings& settings,
                                                    const std::vector<LookupColumn>& columns,
                                                    const std::int32_t* block_columns,
                                                    const LookupParameters& parameters, const LookupSamples& train,
                                                    const LookupSamples& validation);

// Rows of `table` (all columns' weights) and of `values` (all columns' entries), over all blocks.
std::int64_t n_table_rows(const std::vector<LookupColumn>& columns, const std::int32_t* block_columns,
                          std::int64_t n_block_columns_in_all);
std::int64_t n_value_rows(const std::vector<LookupColumn>& columns, const std::int32_t* block_columns,
                          std::int64_t n_block_columns_in_all);

// The values V [value rows, 16] of all blocks' columns, in the order of block_columns, from their weights.
void lookup_values(const std::vector<LookupColumn>& columns, const std::int32_t* block_columns,
                   std::int64_t n_block_columns_in_all, const float* table, float* values, int n_threads);

// How a column's cells are made of a column of a base matrix. With knots, a value between two of them has the entry of
// the lower one and a fraction; values outside have the entry of the first or last. Without, a value is a code, which
// is its entry. NaN has the missing entry.
struct LookupSource {
  std::int32_t base_column;
  std::uint32_t n_knots;
  const float* knots;     // [n_knots], increasing
  std::uint32_t n_codes;  // codes are 0, ..., n_codes - 1
  std::uint32_t missing_entry;
  std::uint32_t unseen_entry;  // of other codes
};

// base [n, columns] -> cells [n, q]; the same on every machine.
void lookup_cells(const std::vector<LookupSource>& sources, const Rows<float>& base, std::uint32_t* cells,
                  int n_threads);

}  // namespace softwood

// What the drivers of lookup trees call: the passes over one block of a tree (see softwood/lookup.h) and a list of
// samples. There are no threads below this line; compiled once per instruction set.
#pragma once

#include <cstdint>

#include "dispatch.h"
#include "softwood/lookup.h"
#include "training_kernels.h"

namespace softwood {

// A cell of a batch, decoded once for all trees.
struct LookupCell {
  std::uint32_t entry;
  float fraction;
};

// One column of a block.
struct LookupSlot {
  std::uint32_t column;
  std::uint32_t value_row;  // where its entries begin among the block's rows of values; a lazy column has none there
  std::uint32_t parameter_row;  // where its weights begin among the block's rows of the table
};

// What both passes need to know of a block. Its rows of values [rows, 16] are the bias, in which splits that do not
// exist are +infinity, then V of each column, then one row that is only read to be multiplied by 0. They are aligned
// to 64 bytes; the table need not be.
struct LookupBlock {
  const LookupColumn* columns;  // all q
  const LookupSlot* slots;      // first those that interpolate, then other ones, then lazy ones
  std::int32_t n_interpolated;
  std::int32_t n_dense;  // slots that are not lazy
  std::int32_t n_slots;
  int n_levels;         // of splits: 4, or fewer in a root block
  const float* values;  // the backward pass does not read them
  const float* table;   // from the block's first row
};

// The samples of a batch in the order of their entries of one column, four of one entry at a time: instead of adding to
// rows in memory sample by sample, the backward pass adds up four in registers. An entry's last four are filled up with
// number n, whose gradient is 0.
struct LookupFours {
  std::int64_t n_fours;
  const std::uint32_t* entry;   // [n_fours]
  const std::uint32_t* sample;  // [n_fours, 4]
  const float* fraction;        // [n_fours, 4]
};

// Samples that reach a block: sample[j] with probability[j]. Without these arrays: all samples, each with
// probability 1.
struct LookupList {
  std::int64_t count;
  const std::int32_t* sample;
  const float* probability;
};

struct LookupVisit {
  LookupBlock block;
  LookupList list;
  const LookupCell* cells;  // [n, q]
  std::int64_t n_columns;
  Activation activation;
  float gamma;
  const float* leaf_weight;  // [k, 16] of a leaf block, else null
  std::int64_t n_outputs;
};

struct LookupForward {
  float* t;  // [count, 16]: split values, for the backward pass
  // Of a leaf block.
  float* scores;         // [n, k, 16] += probability times weight of each leaf
  std::int32_t* leaves;  // [n] += leaves reached; null: not wanted
  // Of an inner block.
  float* child_probability;  // [count, 16]
  std::uint16_t* reached;    // [count]: one bit per child that is reached
};

struct LookupBackward {
  const float* t;
  // Scratch. Writing gradients over t would push all of it through the caches once more.
  float* grad_t;             // [count, 16]
  std::int32_t* active;      // [count]
  std::uint8_t* is_active;   // [count]
  const LookupFours* fours;  // [q]; used for lists of all samples
  // Of a leaf block.
  const float* grad_scores;  // [n, k]
  float* grad_leaf;          // [k, 16], added to
  // Of an inner block: dL/d(probability of the child), given that the sample is there; 0 where it is not. [count, 16]
  const float* expected;
  // Where to write the same for this block and list entry j: at expected_here + 16 parent_entry[j]. Null at the root.
  float* expected_here;
  const std::int32_t* parent_entry;
  // Gradients of the block's rows of values, added to; of lazy columns, at their rows of the table.
  float* grad_values;
  float* grad_lazy;
  // Entries of lazy slot s that got a gradient: the first n_touched[s] of touched[s * touched_stride, ...], and 1 in
  // `marked` (at their rows of the table), which was 0.
  std::int32_t* touched;
  std::int64_t touched_stride;
  std::int64_t* n_touched;
  std::uint8_t* marked;
};

// One step of the optimiser on a block, from the gradients of the backward pass, which are zero afterwards. Elements
// begin at the block's first row; `gradient` of the table is not used.
struct LookupUpdate {
  AdamStep<float> table_step, bias_step, leaf_step;
  Elements<float> table, bias, leaf;  // leaf.value null: an inner block
  std::int64_t n_outputs;
  std::int64_t n_value_rows;
  const LookupBackward* backward;
  double average_decay;
  std::int64_t step;  // counted from 1
  // Up to which step averages are written; null without averaging.
  std::int64_t* table_written;
  std::int64_t* bias_written;
  std::int64_t* leaf_written;
};

struct LookupKernels {
  void (*forward)(const LookupVisit& visit, const LookupForward& forward);
  // sums[i] = the sum of 16 lanes, i < n.
  void (*sum_lanes)(const float* lanes, std::int64_t n, float* sums);
};

struct LookupTrainingKernels {
  LookupKernels forward;
  void (*backward)(const LookupVisit& visit, const LookupBackward& backward);
  void (*update)(const LookupBlock& block, const LookupUpdate& update);
  // The block's rows of values from its table and biases [16].
  void (*build)(const LookupBlock& block, const float* bias, float* values);
  // The row of biases among a block's values, from biases [16].
  void (*build_bias)(int n_levels, const float* bias, float* values);
  // V of one column [n_entries, 16].
  void (*build_column)(const LookupColumn& column, const float* table, float* values);
};

SOFTWOOD_DECLARE_TABLE(LookupTrainingKernels, lookup_training_kernels)

}  // namespace softwood

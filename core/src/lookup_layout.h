// Where the rows of each block stand, in the caller's table and in the trees' own values, and the walk of samples
// through the blocks of a tree.
#pragma once

#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "arena.h"
#include "lookup_kernels.h"

namespace softwood {

// Floats in rows of 16, aligned to 64 bytes, all 0 at first.
class LookupRows {
 public:
  LookupRows() = default;
  explicit LookupRows(std::int64_t n_rows);
  float* data() { return data_.get(); }
  const float* data() const { return data_.get(); }
  float* row(std::int64_t i) { return data_.get() + i * kBlockLanes; }
  const float* row(std::int64_t i) const { return data_.get() + i * kBlockLanes; }

 private:
  struct Free {
    void operator()(float* memory) const { ::operator delete[](memory, std::align_val_t{64}); }
  };
  std::unique_ptr<float[], Free> data_;
};

class LookupLayout {
 public:
  // `lazy_apart`: lazy columns are read from the table and have no rows of values.
  LookupLayout(const LookupShape& shape, const std::vector<LookupColumn>& columns, const std::int32_t* block_columns,
               bool lazy_apart);

  struct Block {
    std::int64_t value_begin, n_value_rows;  // the bias first, one row to spare last
    std::int64_t table_begin, n_table_rows;
    std::int32_t n_interpolated, n_dense;
  };

  const LookupShape& shape() const { return shape_; }
  const std::vector<LookupColumn>& columns() const { return columns_; }
  std::int64_t n_columns() const { return static_cast<std::int64_t>(columns_.size()); }
  std::int64_t n_blocks() const { return static_cast<std::int64_t>(blocks_.size()); }  // of all trees
  const Block& block(std::int64_t i) const { return blocks_[static_cast<std::size_t>(i)]; }
  const LookupSlot* slots(std::int64_t i) const { return slots_.data() + i * shape_.n_block_columns; }
  std::int64_t n_value_rows() const { return n_value_rows_; }
  std::int64_t n_table_rows() const { return n_table_rows_; }
  // The most rows that a block has.
  std::int64_t most_value_rows() const { return most_value_rows_; }
  std::int64_t most_table_rows() const { return most_table_rows_; }
  std::int32_t most_lazy_slots() const { return most_lazy_slots_; }

  // Block i of all, without its values. `table` is that of all blocks.
  LookupBlock view(std::int64_t i, const float* table) const;

 private:
  LookupShape shape_;
  std::vector<LookupColumn> columns_;
  std::vector<Block> blocks_;
  std::vector<LookupSlot> slots_;
  std::int64_t n_value_rows_ = 0, n_table_rows_ = 0, most_value_rows_ = 0, most_table_rows_ = 0;
  std::int32_t most_lazy_slots_ = 0;
};

// The parameters of all trees that a walk reads, and how splits are made of them.
struct LookupForest {
  const LookupLayout* layout;
  const LookupKernels* kernels;
  const float* values;  // of all blocks; or null: a walk builds them, block by block, from table and bias
  const float* table;   // null if there are values and no lazy columns apart
  const float* bias;    // [m * blocks, 16]
  void (*build)(const LookupBlock& block, const float* bias, float* values);  // null with values
  const float* leaf_weight;                                                   // [m * leaf blocks, k, 16]
  std::int64_t n_outputs;
  Activation activation;
  float gamma;

  LookupVisit visit(std::int64_t tree, std::int64_t block, const LookupCell* cells, const LookupList& list) const;
  // Whether block number `block` of a tree is one of the last level; and then its number among those of all trees.
  bool is_leaf(std::int64_t block) const {
    return block >= layout->shape().n_blocks() - layout->shape().n_leaf_blocks();
  }
  std::int64_t leaf_block(std::int64_t tree, std::int64_t block) const {
    const LookupShape& shape = layout->shape();
    return tree * shape.n_leaf_blocks() + block - (shape.n_blocks() - shape.n_leaf_blocks());
  }
};

// A block that some samples reached, for the backward pass.
struct VisitedBlock {
  std::int64_t block;   // of the tree
  std::int64_t parent;  // number of its parent's visit; -1 at the root
  std::int32_t lane;    // which child of its parent
  LookupList list;
  const std::int32_t* parent_entry;  // [count]: which entries of the parent's list these are
  const float* t;
};

// Where a walk leaves its results; see LookupForward.
struct WalkResults {
  float* scores;
  std::int32_t* leaves;
  std::vector<VisitedBlock>* visits;  // null: nothing is kept for a backward pass
};

// Follows n samples through all blocks of a tree, depth first. Children come after their parents in `visits`, whose
// arrays live in the arena; without visits the arena is left as it was.
void walk_tree(const LookupForest& forest, std::int64_t tree, const LookupCell* cells, std::int64_t n_samples,
               const WalkResults& results, Arena& arena);

// scores [n, k] = offset [k] + the sum over trees, in their order; leaves [n] += leaves reached, unless it is null. The
// arena is left as it was.
void score_samples(const LookupForest& forest, const LookupCell* cells, std::int64_t n_samples, const float* offset,
                   float* scores, std::int32_t* leaves, Arena& arena);

// The samples of a batch by their entries of one column; see LookupFours.
class SortedSamples {
 public:
  // cells [n, q], of which column number `column` is sorted.
  void sort(const LookupCell* cells, std::int64_t n_samples, std::int64_t n_columns, std::int64_t column,
            std::int32_t n_entries);
  LookupFours fours() const {
    return {static_cast<std::int64_t>(entry_.size()), entry_.data(), sample_.data(), fraction_.data()};
  }

 private:
  std::vector<std::uint32_t> next_;  // where the next sample of each entry goes
  std::vector<std::uint32_t> entry_, sample_;
  std::vector<float> fraction_;
};

void decode_cells(const std::uint32_t* cells, std::int64_t n_cells, LookupCell* decoded);
// Rows of a table of cells, [number of rows, q]. Throws std::out_of_range if a cell has no entry of its column: the
// caller owns the table and may have changed it.
void decode_rows(const std::uint32_t* cells, const std::vector<LookupColumn>& columns,
                 std::span<const std::int64_t> rows, LookupCell* decoded);

}  // namespace softwood

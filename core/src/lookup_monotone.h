// Trees of lookups whose scores rise or fall with some columns: the nearest such tree of a given one.
//
// A tree is monotone if (1) no split's value t moves against a column's sign, so that the probability of going right
// rises with a column in which scores must rise, and (2) its leaves increase from left to right. Proof by induction
// over nodes: T = S(t) T_left + (1 - S(t)) T_right, and with x_c rising, S(t) falls (1), T_left <= T_right holds
// everywhere since each is a mean of leaves that (2) orders, and both rise themselves. Sums of monotone trees are
// monotone. Both sets are convex cones: averages of such trees are such trees.
#pragma once

#include <cstdint>
#include <vector>

#include "softwood/lookup.h"

namespace softwood {

class LookupMonotone {
 public:
  LookupMonotone(const LookupShape& shape, const std::vector<LookupColumn>& columns, const std::int32_t* block_columns,
                 std::int64_t n_outputs);

  // Whether any column has a sign.
  bool is_needed() const { return is_needed_; }
  // Clamps the weights of ramps and linear terms of tree number `tree`, and projects its leaves onto increasing ones.
  // `table` and `leaf_weight` are those of all trees.
  void project(std::int64_t tree, float* table, float* leaf_weight) const;

 private:
  struct Clamped {
    std::int64_t first_row, n_rows;
    bool is_rising;  // scores rise with the column: weights of its splits are 0 or less
  };

  const LookupShape shape_;
  const std::int64_t n_outputs_;
  bool is_needed_ = false;
  std::vector<std::vector<Clamped>> clamped_;  // [trees]
};

}  // namespace softwood

#include "lookup_monotone.h"

#include <algorithm>

namespace softwood {
namespace {

// Pool adjacent violators: the increasing sequence that is nearest to `values` in squares.
void make_increasing(std::vector<double>& values, std::vector<std::int64_t>& count) {
  std::size_t n_pools = 0;
  for (const double value : values) {  // pools overwrite values that were read already
    double mean = value;
    std::int64_t n = 1;
    while (n_pools > 0 && values[n_pools - 1] > mean) {
      --n_pools;
      mean = (mean * double(n) + values[n_pools] * double(count[n_pools])) / double(n + count[n_pools]);
      n += count[n_pools];
    }
    values[n_pools] = mean;
    count[n_pools++] = n;
  }
  for (std::size_t end = values.size(); n_pools-- > 0;) {
    const std::size_t first = end - static_cast<std::size_t>(count[n_pools]);
    std::fill(values.begin() + std::int64_t(first), values.begin() + std::int64_t(end), values[n_pools]);
    end = first;
  }
}

}  // namespace

LookupMonotone::LookupMonotone(const LookupShape& shape, const std::vector<LookupColumn>& columns,
                               const std::int32_t* block_columns, std::int64_t n_outputs)
    : shape_(shape), n_outputs_(n_outputs), clamped_(shape.n_trees) {
  is_needed_ =
      std::any_of(columns.begin(), columns.end(), [](const LookupColumn& column) { return column.monotone_sign != 0; });
  if (!is_needed_) return;
  std::int64_t row = 0;
  for (std::int64_t tree = 0; tree < shape.n_trees; ++tree) {
    for (std::int64_t i = 0; i < shape.n_blocks() * shape.n_block_columns; ++i) {
      const LookupColumn& column = columns[*block_columns++];
      if (column.monotone_sign != 0) {
        clamped_[tree].push_back({row, column.n_ramps() + 1, column.monotone_sign > 0});
      }
      row += column.n_parameters();
    }
  }
}

void LookupMonotone::project(std::int64_t tree, float* table, float* leaf_weight) const {
  for (const Clamped& some : clamped_[tree]) {
    float* const weights = table + some.first_row * kBlockLanes;
    for (std::int64_t i = 0; i < some.n_rows * kBlockLanes; ++i) {
      weights[i] = some.is_rising ? std::min(weights[i], 0.0F) : std::max(weights[i], 0.0F);
    }
  }
  // A root block of fewer than 4 levels has its leaves in every other lane, or every fourth, or eighth.
  const int n_levels = shape_.n_block_levels() == 1 ? shape_.root_levels() : kBlockLevels;
  const std::int64_t stride = kBlockLanes >> n_levels, n_blocks = shape_.n_leaf_blocks();
  std::vector<double> leaves(static_cast<std::size_t>(n_blocks) << n_levels);
  std::vector<std::int64_t> count(leaves.size());
  for (std::int64_t output = 0; output < n_outputs_; ++output) {
    const auto leaf = [&](std::size_t i) -> float& {
      const std::int64_t block = std::int64_t(i) >> n_levels, lane = (std::int64_t(i) & ((1 << n_levels) - 1)) * stride;
      return leaf_weight[((tree * n_blocks + block) * n_outputs_ + output) * kBlockLanes + lane];
    };
    for (std::size_t i = 0; i < leaves.size(); ++i) leaves[i] = leaf(i);
    make_increasing(leaves, count);
    for (std::size_t i = 0; i < leaves.size(); ++i) leaf(i) = float(leaves[i]);
  }
}

}  // namespace softwood

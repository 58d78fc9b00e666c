#include "lookup_layout.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>

namespace softwood {

LookupRows::LookupRows(std::int64_t n_rows) {
  const auto n_floats = static_cast<std::size_t>(n_rows * kBlockLanes);
  data_.reset(static_cast<float*>(::operator new[](n_floats * sizeof(float), std::align_val_t{64})));
  std::memset(data_.get(), 0, n_floats * sizeof(float));
}

LookupLayout::LookupLayout(const LookupShape& shape, const std::vector<LookupColumn>& columns,
                           const std::int32_t* block_columns, bool lazy_apart)
    : shape_(shape), columns_(columns) {
  const std::int64_t n_blocks = shape.n_trees * shape.n_blocks(), n_slots = shape.n_block_columns;
  blocks_.reserve(n_blocks);
  slots_.reserve(n_blocks * n_slots);
  for (std::int64_t b = 0; b < n_blocks; ++b) {
    Block block{n_value_rows_, 1, n_table_rows_, 0, 0, 0};
    std::vector<LookupSlot> by_kind[3];  // interpolating, plain, lazy
    for (std::int64_t s = 0; s < n_slots; ++s) {
      const std::int32_t number = block_columns[b * n_slots + s];
      const LookupColumn& column = columns_[number];
      const bool lazy = lazy_apart && column.lazy;
      by_kind[lazy                 ? 2
              : column.n_knots > 1 ? 0
                                   : 1]
          .push_back(
              {std::uint32_t(number), lazy ? 0 : std::uint32_t(block.n_value_rows), std::uint32_t(block.n_table_rows)});
      if (!lazy) block.n_value_rows += column.n_entries;
      block.n_table_rows += column.n_parameters();
    }
    block.n_value_rows += 1;
    block.n_interpolated = std::int32_t(by_kind[0].size());
    block.n_dense = std::int32_t(by_kind[0].size() + by_kind[1].size());
    for (const auto& kind : by_kind) slots_.insert(slots_.end(), kind.begin(), kind.end());
    blocks_.push_back(block);
    n_value_rows_ += block.n_value_rows;
    n_table_rows_ += block.n_table_rows;
    most_value_rows_ = std::max(most_value_rows_, block.n_value_rows);
    most_table_rows_ = std::max(most_table_rows_, block.n_table_rows);
    most_lazy_slots_ = std::max(most_lazy_slots_, std::int32_t(by_kind[2].size()));
  }
}

LookupBlock LookupLayout::view(std::int64_t i, const float* table) const {
  const Block& at = block(i);
  return {.columns = columns_.data(),
          .slots = slots(i),
          .n_interpolated = at.n_interpolated,
          .n_dense = at.n_dense,
          .n_slots = std::int32_t(shape_.n_block_columns),
          .n_levels = i % shape_.n_blocks() == 0 ? shape_.root_levels() : kBlockLevels,
          .values = nullptr,
          .table = table != nullptr ? table + at.table_begin * kBlockLanes : nullptr};
}

LookupVisit LookupForest::visit(std::int64_t tree, std::int64_t block, const LookupCell* cells,
                                const LookupList& list) const {
  const std::int64_t number = tree * layout->shape().n_blocks() + block;
  LookupVisit visit{
      .block = layout->view(number, table),
      .list = list,
      .cells = cells,
      .n_columns = layout->n_columns(),
      .activation = activation,
      .gamma = gamma,
      .leaf_weight = is_leaf(block) ? leaf_weight + leaf_block(tree, block) * n_outputs * kBlockLanes : nullptr,
      .n_outputs = n_outputs};
  if (values != nullptr) visit.block.values = values + layout->block(number).value_begin * kBlockLanes;
  return visit;
}

namespace {

// One walk through a tree.
struct Walk {
  const LookupForest& forest;
  std::int64_t tree;
  const LookupCell* cells;
  const WalkResults& results;
  float* built;  // values of the block that is being visited, if none are stored
  Arena& arena;

  // Block number `place` of a level.
  void enter(int level, std::int64_t place, VisitedBlock visited) {
    const LookupShape& shape = forest.layout->shape();
    visited.block = shape.first_block(level) + place;
    const std::int64_t count = visited.list.count;
    LookupForward out{};
    const Arena::Mark before = arena.mark();
    visited.t = out.t = arena.allocate<float>(count * kBlockLanes);
    LookupVisit visit = forest.visit(tree, visited.block, cells, visited.list);
    if (forest.build != nullptr) {
      forest.build(visit.block, forest.bias + (tree * shape.n_blocks() + visited.block) * kBlockLanes, built);
      visit.block.values = built;
    }
    std::int64_t number = -1;
    if (results.visits != nullptr) {
      number = static_cast<std::int64_t>(results.visits->size());
      results.visits->push_back(visited);
    }
    if (visit.leaf_weight != nullptr) {
      out.scores = results.scores;
      out.leaves = results.leaves;
      forest.kernels->forward(visit, out);
    } else {
      out.child_probability = arena.allocate<float>(count * kBlockLanes);
      out.reached = arena.allocate<std::uint16_t>(count);
      forest.kernels->forward(visit, out);
      enter_children(level, place, number, visited.list, out);
    }
    if (results.visits == nullptr) arena.release(before);
  }

  void enter_children(int level, std::int64_t place, std::int64_t parent, const LookupList& list,
                      const LookupForward& found) {
    std::int64_t count[kBlockLanes] = {};
    for (std::int64_t j = 0; j < list.count; ++j) {
      for (std::uint32_t set = found.reached[j]; set != 0; set &= set - 1) ++count[std::countr_zero(set)];
    }
    std::int32_t* sample[kBlockLanes] = {};
    std::int32_t* parent_entry[kBlockLanes] = {};
    float* probability[kBlockLanes] = {};
    for (int lane = 0; lane < kBlockLanes; ++lane) {
      if (count[lane] == 0) continue;
      sample[lane] = arena.allocate<std::int32_t>(count[lane]);
      parent_entry[lane] = arena.allocate<std::int32_t>(count[lane]);
      probability[lane] = arena.allocate<float>(count[lane]);
      count[lane] = 0;
    }
    for (std::int64_t j = 0; j < list.count; ++j) {
      for (std::uint32_t set = found.reached[j]; set != 0; set &= set - 1) {
        const int lane = std::countr_zero(set);
        const std::int64_t to = count[lane]++;
        sample[lane][to] = list.sample != nullptr ? list.sample[j] : std::int32_t(j);
        parent_entry[lane][to] = std::int32_t(j);
        probability[lane][to] = found.child_probability[j * kBlockLanes + lane];
      }
    }
    const int unused_levels = level == 0 ? kBlockLevels - forest.layout->shape().root_levels() : 0;
    const std::int64_t first_child = place * kBlockLanes;
    for (int lane = 0; lane < kBlockLanes; ++lane) {
      if (count[lane] == 0) continue;
      enter(level + 1, first_child + (lane >> unused_levels),
            {0, parent, lane, {count[lane], sample[lane], probability[lane]}, parent_entry[lane], nullptr});
    }
  }
};

}  // namespace

void walk_tree(const LookupForest& forest, std::int64_t tree, const LookupCell* cells, std::int64_t n_samples,
               const WalkResults& results, Arena& arena) {
  float* const built =
      forest.build != nullptr ? arena.allocate<float>(forest.layout->most_value_rows() * kBlockLanes) : nullptr;
  Walk walk{forest, tree, cells, results, built, arena};
  walk.enter(0, 0, {0, -1, 0, {n_samples, nullptr, nullptr}, nullptr, nullptr});
}

void score_samples(const LookupForest& forest, const LookupCell* cells, std::int64_t n_samples, const float* offset,
                   float* scores, std::int32_t* leaves, Arena& arena) {
  const std::int64_t k = forest.n_outputs, n_scores = n_samples * k;
  const Arena::Mark before = arena.mark();
  float* const lanes = arena.allocate<float>(n_scores * kBlockLanes);
  std::fill_n(lanes, n_scores * kBlockLanes, 0.0F);
  for (std::int64_t tree = 0; tree < forest.layout->shape().n_trees; ++tree) {
    walk_tree(forest, tree, cells, n_samples, {lanes, leaves, nullptr}, arena);
  }
  forest.kernels->sum_lanes(lanes, n_scores, scores);
  for (std::int64_t i = 0; i < n_scores; ++i) scores[i] += offset[i % k];
  arena.release(before);
}

void SortedSamples::sort(const LookupCell* cells, std::int64_t n_samples, std::int64_t n_columns, std::int64_t column,
                         std::int32_t n_entries) {
  next_.assign(static_cast<std::size_t>(n_entries), 0);
  for (std::int64_t i = 0; i < n_samples; ++i) ++next_[cells[i * n_columns + column].entry];
  entry_.clear();
  for (std::int32_t e = 0; e < n_entries; ++e) {
    const std::uint32_t n_fours = (next_[e] + 3) / 4;
    next_[e] = static_cast<std::uint32_t>(4 * entry_.size());
    entry_.insert(entry_.end(), n_fours, static_cast<std::uint32_t>(e));
  }
  sample_.assign(4 * entry_.size(), static_cast<std::uint32_t>(n_samples));
  fraction_.assign(4 * entry_.size(), 0);
  for (std::int64_t i = 0; i < n_samples; ++i) {
    const LookupCell& cell = cells[i * n_columns + column];
    const std::uint32_t to = next_[cell.entry]++;
    sample_[to] = static_cast<std::uint32_t>(i);
    fraction_[to] = cell.fraction;
  }
}

void decode_cells(const std::uint32_t* cells, std::int64_t n_cells, LookupCell* decoded) {
  for (std::int64_t i = 0; i < n_cells; ++i) decoded[i] = {cells[i] & 0xffff, float(cells[i] >> 16) / 65535.0F};
}

void decode_rows(const std::uint32_t* cells, const std::vector<LookupColumn>& columns,
                 std::span<const std::int64_t> rows, LookupCell* decoded) {
  const auto n_columns = static_cast<std::int64_t>(columns.size());
  for (const std::int64_t row : rows) {
    decode_cells(cells + row * n_columns, n_columns, decoded);
    for (const LookupColumn& column : columns) {
      if ((decoded++)->entry >= static_cast<std::uint32_t>(column.n_entries)) {
        throw std::out_of_range("softwood: `cells` contains an entry that its column does not have");
      }
    }
  }
}

}  // namespace softwood

// Algorithm 1 of the paper for trees of lookups. The lanes are the splits of a block; rows go through a block together,
// so that its values are read from memory once. Sums of split values and of leaves are sums of integers, which are
// exact in any order; the rest is compiled without contraction. The same bits on every machine.
#include "lookup_predictor_kernels.h"

#include <bit>
#include <type_traits>

#include "block_routing.h"
#include "sixteen_integers.h"

namespace softwood::SOFTWOOD_ISA {
namespace {

// Rows whose sums are interleaved in the code: as many as there are registers for.
constexpr int kRowsAtOnce = kSixteenRegisters == 4 ? 2 : 4;

// Slots with a usual cell from which on starts by row take less time than reading all cells.
constexpr std::int64_t kMinUsualSlots = 4;

// Rows that reach a block: sample[j] with probability[j]. Without these arrays, all rows surely.
struct RowList {
  std::int64_t count;
  const std::int32_t* sample;
  const float* probability;

  SOFTWOOD_INLINE std::int64_t row(std::int64_t j) const { return sample != nullptr ? sample[j] : j; }
};

template <typename Act>
class Scoring {
 public:
  Scoring(const ScoringTrees& trees, const ScoringRows& rows, std::int32_t* sums, Arena& arena, const Act& activation)
      : trees_(trees), rows_(rows), sums_(sums), arena_(arena), activation_(activation) {}

  void run() {
    const std::int64_t n_rows = rows_.n_rows;
    if (n_rows < kRowsAtOnce && trees_.shape.n_block_levels() == 1) {
      for (std::int64_t row = 0; row < n_rows; ++row) add_trees(row);
      return;
    }
    for (tree_ = 0; tree_ < trees_.shape.n_trees; ++tree_) enter(0, 0, {n_rows, nullptr, nullptr});
  }

 private:
  const ScoringTrees& trees_;
  const ScoringRows& rows_;
  std::int32_t* const sums_;
  Arena& arena_;
  const Act activation_;
  std::int64_t tree_ = 0;

  // Block number `place` of a level of blocks.
  void enter(int level, std::int64_t place, const RowList& list) {
    const LookupShape& shape = trees_.shape;
    const ArenaScope scope(arena_);
    ScoringBlock block = trees_.blocks[tree_ * shape.n_blocks() + shape.first_block(level) + place];
    if (rows_.usual != nullptr && list.sample == nullptr) begin_at_usual(block);
    if (level + 1 == shape.n_block_levels()) {
      add_leaves(block, trees_.leaf_weight + (tree_ * shape.n_leaf_blocks() + place) * trees_.n_outputs * kBlockLanes,
                 list);
    } else {
      enter_children(block, level, place, list);
    }
  }

  // Calls body(j, probabilities of the 16 leaves) for each entry j of the list.
  template <typename Body>
  SOFTWOOD_INLINE void for_leaves(const ScoringBlock& block, const RowList& list, const Body& body) {
    std::int64_t j = 0;
    for (; j + kRowsAtOnce <= list.count; j += kRowsAtOnce) some_leaves<kRowsAtOnce>(block, list, j, body);
    for (; j < list.count; ++j) some_leaves<1>(block, list, j, body);
  }

  template <int n, typename Body>
  SOFTWOOD_INLINE void some_leaves(const ScoringBlock& block, const RowList& list, std::int64_t j, const Body& body) {
    const char* row[n];
    SixteenIntegers sum[n];
    for (int i = 0; i < n; ++i) {
      row[i] = cells_of(list.row(j + i));
      sum[i] = load_sixteen_integers<kSixteenRegisters>(block.start + list.row(j + i) * block.start_stride);
    }
    add_slots(block, row, sum);
    const Sixteen bias = load_sixteen(block.bias);
#pragma GCC unroll 4
    for (int i = 0; i < n; ++i) {
      const Steps step = steps(sides(activation_, to_floats(sum[i]) * trees_.unit + bias));
      Sixteen probability = step.first;
      if (list.probability != nullptr) probability = probability * list.probability[j + i];
      body(j + i, ((probability * step.second) * step.third) * step.fourth);
    }
  }

  SOFTWOOD_INLINE const char* cells_of(std::int64_t row) const {
    return reinterpret_cast<const char*>(rows_.cells + row * rows_.n_columns);
  }

  // sum += those of a block's slots, in n rows of cells.
  template <int n>
  SOFTWOOD_INLINE void add_slots(const ScoringBlock& block, const char* const (&row)[n], SixteenIntegers (&sum)[n]) {
    const ScoringSlot* const of_shorts = block.slots + block.n_byte_slots;
    add_slots<std::uint8_t>(block.slots, of_shorts, row, sum);
    add_slots<std::int16_t>(of_shorts, block.slots + block.n_slots, row, sum);
  }

  template <typename T, int n>
  SOFTWOOD_INLINE void add_slots(const ScoringSlot* slot, const ScoringSlot* end, const char* const (&row)[n],
                                 SixteenIntegers (&sum)[n]) {
    for (; slot < end; ++slot) {
      const std::uint64_t column = slot->column_offset;
#pragma GCC unroll 4
      for (int i = 0; i < n; ++i) {
        add_cell<T>(sum[i], slot->values, *reinterpret_cast<const ScoringCell*>(row[i] + column));
      }
    }
  }

  template <typename T>
  static SOFTWOOD_INLINE void add_cell(SixteenIntegers& sum, const void* values, const ScoringCell& cell) {
    const char* const pairs = static_cast<const char*>(values) + sizeof(T) * cell.offset;
    add_pairs(sum, reinterpret_cast<const T*>(pairs), cell.weights);
  }

  const UsualCell& usual_of(const ScoringSlot& slot) const {
    return rows_.usual[slot.column_offset / sizeof(ScoringCell)];
  }

  // Gives a block that all rows enter a start for each row, which holds the columns that have a usual cell, and leaves
  // it only the slots of others. Sums of integers are the same in any order.
  void begin_at_usual(ScoringBlock& block) {
    const ScoringSlot *const of_shorts = block.slots + block.n_byte_slots, *const end = block.slots + block.n_slots;
    const auto is_usual = [&](const ScoringSlot& slot) { return usual_of(slot).others != nullptr; };
    std::int64_t n_usual = 0;
    for (const ScoringSlot* slot = block.slots; slot < end; ++slot) n_usual += is_usual(*slot) ? 1 : 0;
    if (n_usual < kMinUsualSlots) return;
    auto* const start = arena_.allocate<std::int32_t>(rows_.n_rows * kBlockLanes);
    SixteenIntegers sum = load_sixteen_integers<kSixteenRegisters>(block.start);
    for (const ScoringSlot* slot = block.slots; slot < of_shorts; ++slot) {
      if (is_usual(*slot)) add_cell<std::uint8_t>(sum, slot->values, usual_of(*slot).cell);
    }
    for (const ScoringSlot* slot = of_shorts; slot < end; ++slot) {
      if (is_usual(*slot)) add_cell<std::int16_t>(sum, slot->values, usual_of(*slot).cell);
    }
    for (std::int64_t i = 0; i < rows_.n_rows; ++i) store_sixteen_integers(start + i * kBlockLanes, sum);
    auto* const rest = arena_.allocate<ScoringSlot>(block.n_slots - n_usual);
    ScoringSlot* to = rest;
    for (const ScoringSlot* slot = block.slots; slot < of_shorts; ++slot) {
      if (is_usual(*slot)) {
        add_others<std::uint8_t>(*slot, start);
      } else {
        *to++ = *slot;
      }
    }
    const std::int64_t n_bytes = to - rest;
    for (const ScoringSlot* slot = of_shorts; slot < end; ++slot) {
      if (is_usual(*slot)) {
        add_others<std::int16_t>(*slot, start);
      } else {
        *to++ = *slot;
      }
    }
    block = {rest, n_bytes, to - rest, start, kBlockLanes, block.bias};
  }

  // Puts the cells of the other rows in the place of the usual cell.
  template <typename T>
  SOFTWOOD_NOINLINE void add_others(const ScoringSlot& slot, std::int32_t* start) {
    const UsualCell& usual = usual_of(slot);
    SixteenIntegers less = {};
    add_cell<T>(less, slot.values, usual.cell);
    for (const OtherCell *other = usual.others, *end = other + usual.n_others; other < end; ++other) {
      std::int32_t* const sums = start + other->row * kBlockLanes;
      SixteenIntegers sum = difference(load_sixteen_integers<kSixteenRegisters>(sums), less);
      add_cell<T>(sum, slot.values, other->cell);
      store_sixteen_integers(sums, sum);
    }
  }

  // Trees of one block, in one row: first the sums of all trees, then their leaves, some trees at a time. The way from
  // a sum to the leaves is a long chain of dependent instructions, and so is that from a cell to a sum.
  void add_trees(std::int64_t row) {
    const ArenaScope scope(arena_);
    const std::int64_t n_trees = trees_.shape.n_trees;
    auto* const sums = arena_.allocate<std::int32_t>(n_trees * kBlockLanes);
    add_all_slots(cells_of(row), sums);
    std::int64_t tree = 0;
    for (; tree + kRowsAtOnce <= n_trees; tree += kRowsAtOnce) add_leaves_of<kRowsAtOnce>(tree, row, sums);
    for (; tree < n_trees; ++tree) add_leaves_of<1>(tree, row, sums);
  }

  SOFTWOOD_NOINLINE void add_all_slots(const char* row, std::int32_t* sums) {
    for (std::int64_t tree = 0; tree < trees_.shape.n_trees; ++tree) {
      SixteenIntegers sum[1] = {load_sixteen_integers<kSixteenRegisters>(trees_.blocks[tree].start)};
      add_slots<1>(trees_.blocks[tree], {row}, sum);
      store_sixteen_integers(sums + tree * kBlockLanes, sum[0]);
    }
  }

  template <int n>
  SOFTWOOD_INLINE void add_leaves_of(std::int64_t tree, std::int64_t row, const std::int32_t* sums) {
    const std::int64_t n_lanes = trees_.n_outputs * kBlockLanes;
#pragma GCC unroll 4
    for (int i = 0; i < n; ++i) {
      const SixteenIntegers sum = load_sixteen_integers<kSixteenRegisters>(sums + (tree + i) * kBlockLanes);
      const Sixteen bias = load_sixteen(trees_.blocks[tree + i].bias);
      const Steps step = steps(sides(activation_, to_floats(sum) * trees_.unit + bias));
      const Sixteen probability = ((step.first * step.second) * step.third) * step.fourth;
      const float* const leaf_weight = trees_.leaf_weight + (tree + i) * n_lanes;
      for (std::int64_t o = 0; o < n_lanes; o += kBlockLanes) {
        add_rounded(sums_ + row * n_lanes + o, probability * load_sixteen(leaf_weight + o));
      }
    }
  }

  void add_leaves(const ScoringBlock& block, const float* leaf_weight, const RowList& list) {
    const std::int64_t n_lanes = trees_.n_outputs * kBlockLanes;
    for_leaves(block, list, [&](std::int64_t j, const Sixteen& probability) __attribute__((always_inline)) {
      std::int32_t* const to = sums_ + list.row(j) * n_lanes;
      for (std::int64_t o = 0; o < n_lanes; o += kBlockLanes) {
        add_rounded(to + o, probability * load_sixteen(leaf_weight + o));
      }
    });
  }

  void enter_children(const ScoringBlock& block, int level, std::int64_t place, const RowList& list) {
    float* const leaves = arena_.allocate<float>(list.count * kBlockLanes);
    auto* const reached = arena_.allocate<std::uint16_t>(list.count);
    std::int64_t count[kBlockLanes] = {};
    for_leaves(block, list, [&](std::int64_t j, const Sixteen& probability) __attribute__((always_inline)) {
      store_sixteen(leaves + j * kBlockLanes, probability);
      reached[j] = std::uint16_t(nonzero_bits(probability));
    });
    for (std::int64_t j = 0; j < list.count; ++j) {
      for (std::uint32_t set = reached[j]; set != 0; set &= set - 1) ++count[std::countr_zero(set)];
    }
    std::int32_t* sample[kBlockLanes] = {};
    float* probability[kBlockLanes] = {};
    for (int lane = 0; lane < kBlockLanes; ++lane) {
      sample[lane] = arena_.allocate<std::int32_t>(count[lane]);
      probability[lane] = arena_.allocate<float>(count[lane]);
      count[lane] = 0;
    }
    for (std::int64_t j = 0; j < list.count; ++j) {
      for (std::uint32_t set = reached[j]; set != 0; set &= set - 1) {
        const int lane = std::countr_zero(set);
        const std::int64_t to = count[lane]++;
        sample[lane][to] = std::int32_t(list.row(j));
        probability[lane][to] = leaves[j * kBlockLanes + lane];
      }
    }
    // In a root block of fewer levels only the first leaf of each subtree is reached.
    const int unused_levels = level == 0 ? kBlockLevels - trees_.shape.root_levels() : 0;
    for (int lane = 0; lane < kBlockLanes; ++lane) {
      if (count[lane] == 0) continue;
      const std::int64_t first_child = place * kBlockLanes;
      enter(level + 1, first_child + (lane >> unused_levels), {count[lane], sample[lane], probability[lane]});
    }
  }
};

void add_scores(const ScoringTrees& trees, const ScoringRows& rows, std::int32_t* sums, Arena& arena) {
  const FlushSubnormals flushing;
  with_activation(trees.activation, trees.gamma, [&](const auto& activation) {
    Scoring<std::decay_t<decltype(activation)>>(trees, rows, sums, arena, activation).run();
  });
}

}  // namespace

extern const ScoringKernels scoring_kernels = {&add_scores};

}  // namespace softwood::SOFTWOOD_ISA

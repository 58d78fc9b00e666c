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
  Scoring(const ScoringTrees& trees, const ScoringCell* cells, std::int64_t n_columns, std::int32_t* sums, Arena& arena,
          const Act& activation)
      : trees_(trees), cells_(cells), n_columns_(n_columns), sums_(sums), arena_(arena), activation_(activation) {}

  void run(std::int64_t n_rows) {
    for (tree_ = 0; tree_ < trees_.shape.n_trees; ++tree_) enter(0, 0, {n_rows, nullptr, nullptr});
  }

 private:
  const ScoringTrees& trees_;
  const ScoringCell* const cells_;
  const std::int64_t n_columns_;
  std::int32_t* const sums_;
  Arena& arena_;
  const Act activation_;
  std::int64_t tree_ = 0;

  // Block number `place` of a level of blocks.
  void enter(int level, std::int64_t place, const RowList& list) {
    const LookupShape& shape = trees_.shape;
    const ScoringBlock& block = trees_.blocks[tree_ * shape.n_blocks() + shape.first_block(level) + place];
    if (level + 1 == shape.n_block_levels()) {
      add_leaves(block, trees_.leaf_weight + (tree_ * shape.n_leaf_blocks() + place) * trees_.n_outputs * kBlockLanes,
                 list);
    } else {
      const ArenaScope scope(arena_);
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
    SixteenIntegers sum[n] = {};
    for (int i = 0; i < n; ++i) row[i] = reinterpret_cast<const char*>(cells_ + list.row(j + i) * n_columns_);
    for (const ScoringSlot *slot = block.slots, *end = slot + block.n_slots; slot < end; ++slot) {
      const char* const values = reinterpret_cast<const char*>(slot->values);
      const std::uint64_t column = slot->column_offset;
#pragma GCC unroll 4
      for (int i = 0; i < n; ++i) {
        const auto* const cell = reinterpret_cast<const ScoringCell*>(row[i] + column);
        add_pairs(sum[i], reinterpret_cast<const std::int16_t*>(values + cell->offset), cell->weights);
      }
    }
    const Sixteen bias = load_sixteen(block.bias);
#pragma GCC unroll 4
    for (int i = 0; i < n; ++i) {
      const Steps step = steps(sides(activation_, to_floats(sum[i]) * trees_.unit + bias));
      Sixteen probability = step.first;
      if (list.probability != nullptr) probability = probability * list.probability[j + i];
      body(j + i, ((probability * step.second) * step.third) * step.fourth);
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

void add_scores(const ScoringTrees& trees, const ScoringCell* cells, std::int64_t n_columns, std::int64_t n_rows,
                std::int32_t* sums, Arena& arena) {
  const FlushSubnormals flushing;
  with_activation(trees.activation, trees.gamma, [&](const auto& activation) {
    Scoring<std::decay_t<decltype(activation)>>(trees, cells, n_columns, sums, arena, activation).run(n_rows);
  });
}

}  // namespace

extern const ScoringKernels scoring_kernels = {&add_scores};

}  // namespace softwood::SOFTWOOD_ISA

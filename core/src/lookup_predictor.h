// Trees of lookups as the predictor holds them: values of a block's splits side by side; see
// lookup_predictor_kernels.h.
#pragma once

#include <cstdint>
#include <vector>

#include "lookup_predictor_kernels.h"
#include "softwood/predictor.h"

namespace softwood {

// How the cells of one lookup column are made; see LookupInput.
class CellReader {
 public:
  explicit CellReader(const LookupInput& input);
  ScoringCell cell(const float* base) const;

 private:
  std::int32_t base_column_;
  std::uint32_t n_knots_, n_codes_, half_;  // half_: of the knots with padding, a power of two; 0 with one knot
  std::vector<float> knots_;                // then infinities
  std::vector<float> rate_;                 // [n_knots]: units of the fraction per unit of the column; 0 at the last
};

// The usual cells [n_columns] of a slice: those of more than half of the rows, by column.
const UsualCell* usual_cells(const ScoringRows& rows, Arena& arena);

// One ensemble.
class LookupScorer {
 public:
  LookupScorer(const std::vector<LookupInput>& inputs, const LookupEnsemble& ensemble);
  LookupScorer(const LookupScorer&) = delete;
  LookupScorer& operator=(const LookupScorer&) = delete;

  // scores [n, k] += sum of trees.
  void add_scores(const ScoringRows& rows, double* scores, Arena& arena) const;
  std::size_t n_bytes() const;

 private:
  // Values of 16 splits at an entry and at the next one; see ScoringBlock.
  template <typename T>
  struct alignas(2 * kBlockLanes * sizeof(T)) Pairs {
    T values[2 * kBlockLanes];
  };
  // One split's table of one column.
  struct Table {
    std::int64_t column, lane;
    const std::int16_t* begin;
    const std::int16_t* end;
    std::int16_t least;

    bool fits_bytes() const;
  };
  void add_block(const std::vector<LookupInput>& inputs, const LookupEnsemble& ensemble,
                 const std::vector<std::int64_t>& first_value, std::int64_t tree, std::int64_t root, int n_levels);
  template <typename T>
  void add_slot(std::vector<Pairs<T>>& pairs, const Table* begin, const Table* end);

  double inverse_scale_;
  std::vector<Pairs<std::uint8_t>> bytes_;
  std::vector<Pairs<std::int16_t>> shorts_;
  std::vector<ScoringSlot> slots_;
  std::vector<std::int32_t> start_;
  std::vector<float> bias_, leaf_weight_;
  std::vector<std::int64_t> slot_entry_;                 // where the entries of a slot begin
  std::vector<std::int64_t> block_slot_, block_shorts_;  // where the slots of a block, and those of shorts, begin
  std::vector<ScoringBlock> blocks_;
  ScoringTrees trees_;
};

}  // namespace softwood

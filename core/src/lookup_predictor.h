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

// One ensemble.
class LookupScorer {
 public:
  LookupScorer(const std::vector<LookupInput>& inputs, const LookupEnsemble& ensemble);
  LookupScorer(const LookupScorer&) = delete;
  LookupScorer& operator=(const LookupScorer&) = delete;

  // scores [n, k] += sum of trees, for cells [n, inputs].
  void add_scores(const ScoringCell* cells, std::int64_t n_rows, double* scores, Arena& arena) const;
  std::size_t n_bytes() const;

 private:
  // Memory in lines of the cache.
  struct alignas(64) Line {
    std::int16_t values[2 * kBlockLanes];
  };
  void add_block(const std::vector<LookupInput>& inputs, const LookupEnsemble& ensemble,
                 const std::vector<std::int64_t>& first_value, std::int64_t tree, std::int64_t root, int n_levels);

  std::int64_t n_columns_;
  double inverse_scale_;
  std::vector<Line> values_;
  std::vector<ScoringSlot> slots_;
  std::vector<float> bias_, leaf_weight_;
  std::vector<std::int64_t> slot_line_, block_slot_;  // where the lines of a slot, and the slots of a block, begin
  std::vector<ScoringBlock> blocks_;
  ScoringTrees trees_;
};

}  // namespace softwood

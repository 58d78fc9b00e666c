#include "lookup_predictor.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace softwood {
namespace {

constexpr std::uint32_t kLineBytes = 64;

}  // namespace

CellReader::CellReader(const LookupInput& input)
    : base_column_(input.base_column),
      n_knots_(static_cast<std::uint32_t>(input.knots.size())),
      n_codes_(static_cast<std::uint32_t>(input.n_codes)),
      half_(0),
      knots_(input.knots),
      rate_(input.knots.size(), 0.0F) {
  while (2 * half_ < n_knots_) half_ = half_ == 0 ? 1 : 2 * half_;
  if (n_knots_ < 2) half_ = 0;
  knots_.resize(std::max<std::size_t>(1, 2 * half_), std::numeric_limits<float>::infinity());
  for (std::uint32_t i = 0; i + 1 < n_knots_; ++i) {
    const double rate = kOneFraction / (double(knots_[i + 1]) - double(knots_[i]));
    rate_[i] = float(std::min(rate, double(std::numeric_limits<float>::max())));
  }
}

ScoringCell CellReader::cell(const float* base) const {
  constexpr auto kOne = static_cast<std::uint32_t>(kOneFraction);
  const float x = base[base_column_];
  if (n_knots_ == 0) {
    const bool known = x >= 0 && x < float(n_codes_) && x == std::trunc(x);
    return {kLineBytes * (known ? static_cast<std::uint32_t>(x) : n_codes_), kOne};
  }
  if (std::isnan(x)) return {kLineBytes * n_knots_, kOne};
  std::uint32_t low = 0;  // the last knot that is not above x, or the first
  for (std::uint32_t step = half_; step > 0; step /= 2) low += knots_[low + step] <= x ? step : 0;
  const float position = (x - knots_[low]) * rate_[low];
  // NaN, from infinity times 0, is not positive.
  const float held = position > 0 ? (position < kOneFraction ? position : kOneFraction) : 0;
  const auto fraction = static_cast<std::uint32_t>(std::lrint(held));
  return {kLineBytes * low, (kOne - fraction) | fraction << 16};
}

LookupScorer::LookupScorer(const std::vector<LookupInput>& inputs, const LookupEnsemble& ensemble)
    : n_columns_(static_cast<std::int64_t>(inputs.size())), inverse_scale_(1 / double(ensemble.leaf_scale)) {
  const LookupShape shape{ensemble.n_trees, ensemble.depth, 0};
  const std::int64_t n_tables = ensemble.table_begin[ensemble.n_trees * ensemble.n_splits()];
  std::vector<std::int64_t> first_value(static_cast<std::size_t>(n_tables) + 1, 0);
  for (std::int64_t i = 0; i < n_tables; ++i) {
    first_value[i + 1] = first_value[i] + inputs[ensemble.table_column[i]].n_entries();
  }
  for (std::int64_t tree = 0; tree < ensemble.n_trees; ++tree) {
    for (int level = 0, depth = 0; level < shape.n_block_levels(); ++level) {
      const int n_levels = level == 0 ? shape.root_levels() : kBlockLevels;
      for (std::int64_t place = 0; place < std::int64_t{1} << depth; ++place) {
        add_block(inputs, ensemble, first_value, tree, (std::int64_t{1} << depth) - 1 + place, n_levels);
      }
      depth += n_levels;
    }
  }
  const std::int64_t k = ensemble.n_outputs, n_leaf_blocks = shape.n_trees * shape.n_leaf_blocks();
  const int leaf_levels = std::min(ensemble.depth, kBlockLevels);
  leaf_weight_.assign(static_cast<std::size_t>(n_leaf_blocks * k * kBlockLanes), 0.0F);
  for (std::int64_t i = 0; i < n_leaf_blocks << leaf_levels; ++i) {
    const std::int64_t block = i >> leaf_levels, lane = (i - (block << leaf_levels)) << (kBlockLevels - leaf_levels);
    for (std::int64_t o = 0; o < k; ++o) {
      leaf_weight_[(block * k + o) * kBlockLanes + lane] = ensemble.leaf_weight[i * k + o] * ensemble.leaf_scale;
    }
  }
  for (std::size_t i = 0; i < slots_.size(); ++i) slots_[i].values = values_[slot_line_[i]].values;
  for (std::size_t b = 0; b < block_slot_.size(); ++b) {
    const std::int64_t end = b + 1 < block_slot_.size() ? block_slot_[b + 1] : std::int64_t(slots_.size());
    blocks_.push_back({slots_.data() + block_slot_[b], end - block_slot_[b], bias_.data() + b * kBlockLanes});
  }
  trees_ = {
      shape, blocks_.data(), leaf_weight_.data(), k, ensemble.activation, ensemble.gamma, ensemble.step / kOneFraction};
}

// The block whose root is node `root` in heap order.
void LookupScorer::add_block(const std::vector<LookupInput>& inputs, const LookupEnsemble& ensemble,
                             const std::vector<std::int64_t>& first_value, std::int64_t tree, std::int64_t root,
                             int n_levels) {
  block_slot_.push_back(static_cast<std::int64_t>(slots_.size()));
  const std::size_t first_slot = slots_.size(), first_bias = bias_.size();
  bias_.resize(first_bias + kBlockLanes, std::numeric_limits<float>::infinity());
  for (std::int64_t lane = 0; lane < (std::int64_t{1} << n_levels) - 1; ++lane) {
    const int level = std::bit_width(std::uint64_t(lane + 1)) - 1;
    const std::int64_t node = ((root + 1) << level) - 1 + lane + 1 - (std::int64_t{1} << level);
    const std::int64_t split = tree * ensemble.n_splits() + node;
    bias_[first_bias + lane] = ensemble.split_bias[split];
    for (std::int64_t i = ensemble.table_begin[split]; i < ensemble.table_begin[split + 1]; ++i) {
      const std::int64_t n_entries = inputs[ensemble.table_column[i]].n_entries();
      const std::uint64_t column_offset = sizeof(ScoringCell) * std::uint64_t(ensemble.table_column[i]);
      std::size_t slot = first_slot;
      while (slot < slots_.size() && slots_[slot].column_offset != column_offset) ++slot;
      if (slot == slots_.size()) {
        slots_.push_back({nullptr, column_offset});
        slot_line_.push_back(static_cast<std::int64_t>(values_.size()));
        values_.resize(values_.size() + static_cast<std::size_t>(n_entries));
      }
      Line* const lines = values_.data() + slot_line_[slot];
      const std::int16_t* const from = ensemble.values + first_value[i];
      for (std::int64_t e = 0; e < n_entries; ++e) {
        lines[e].values[2 * lane] = from[e];
        if (e > 0) lines[e - 1].values[2 * lane + 1] = from[e];
      }
    }
  }
}

void LookupScorer::add_scores(const ScoringCell* cells, std::int64_t n_rows, double* scores, Arena& arena) const {
  const ArenaScope scope(arena);
  const std::int64_t n_scores = n_rows * trees_.n_outputs;
  auto* const sums = arena.allocate<std::int32_t>(n_scores * kBlockLanes);
  std::fill_n(sums, n_scores * kBlockLanes, 0);
  scoring_kernels().add_scores(trees_, cells, n_columns_, n_rows, sums, arena);
  for (std::int64_t i = 0; i < n_scores; ++i) {
    std::int64_t total = 0;
    for (std::int64_t lane = 0; lane < kBlockLanes; ++lane) total += sums[i * kBlockLanes + lane];
    scores[i] += double(total) * inverse_scale_;
  }
}

std::size_t LookupScorer::n_bytes() const {
  return values_.size() * sizeof(Line) + (bias_.size() + leaf_weight_.size()) * sizeof(float) +
         slots_.size() * sizeof(ScoringSlot);
}

}  // namespace softwood

#include "lookup_predictor.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

namespace softwood {
namespace {

constexpr std::uint32_t kEntryBytes = 2 * kBlockLanes;  // of pairs of bytes

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
    return {kEntryBytes * (known ? static_cast<std::uint32_t>(x) : n_codes_), kOne};
  }
  if (std::isnan(x)) return {kEntryBytes * n_knots_, kOne};
  std::uint32_t low = 0;  // the last knot that is not above x, or the first
  for (std::uint32_t step = half_; step > 0; step /= 2) low += knots_[low + step] <= x ? step : 0;
  const float position = (x - knots_[low]) * rate_[low];
  // NaN, from infinity times 0, is not positive.
  const float held = position > 0 ? (position < kOneFraction ? position : kOneFraction) : 0;
  const auto fraction = static_cast<std::uint32_t>(std::lrint(held));
  return {kEntryBytes * low, (kOne - fraction) | fraction << 16};
}

const UsualCell* usual_cells(const ScoringRows& rows, Arena& arena) {
  const auto are_equal = [](const ScoringCell& a, const ScoringCell& b) {
    return a.offset == b.offset && a.weights == b.weights;
  };
  auto* const found = arena.allocate<UsualCell>(rows.n_columns);
  for (std::int64_t column = 0; column < rows.n_columns; ++column) {
    const auto cell = [&](std::int64_t i) -> const ScoringCell& { return rows.cells[i * rows.n_columns + column]; };
    ScoringCell candidate{};  // Boyer's and Moore's: the only one that can have more than half
    for (std::int64_t i = 0, lead = 0; i < rows.n_rows; ++i) {
      if (lead == 0) candidate = cell(i);
      lead += are_equal(cell(i), candidate) ? 1 : -1;
    }
    std::int64_t n_others = 0;
    for (std::int64_t i = 0; i < rows.n_rows; ++i) n_others += are_equal(cell(i), candidate) ? 0 : 1;
    if (2 * n_others >= rows.n_rows) {
      found[column] = {{}, nullptr, 0};
      continue;
    }
    auto* const others = arena.allocate<OtherCell>(n_others);
    OtherCell* to = others;
    for (std::int64_t i = 0; i < rows.n_rows; ++i) {
      if (!are_equal(cell(i), candidate)) *to++ = {static_cast<std::int32_t>(i), cell(i)};
    }
    found[column] = {candidate, others, n_others};
  }
  return found;
}

LookupScorer::LookupScorer(const std::vector<LookupInput>& inputs, const LookupEnsemble& ensemble)
    : inverse_scale_(1 / double(ensemble.leaf_scale)) {
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
  block_slot_.push_back(static_cast<std::int64_t>(slots_.size()));
  for (std::size_t b = 0; b < block_shorts_.size(); ++b) {
    const std::int64_t begin = block_slot_[b], shorts = block_shorts_[b], end = block_slot_[b + 1];
    for (std::int64_t i = begin; i < end; ++i) {
      slots_[i].values = i < shorts ? static_cast<const void*>(&bytes_[slot_entry_[i]]) : &shorts_[slot_entry_[i]];
    }
    const std::int64_t lane = static_cast<std::int64_t>(b) * kBlockLanes;
    blocks_.push_back(
        {slots_.data() + begin, shorts - begin, end - begin, start_.data() + lane, 0, bias_.data() + lane});
  }
  trees_ = {
      shape, blocks_.data(), leaf_weight_.data(), k, ensemble.activation, ensemble.gamma, ensemble.step / kOneFraction};
}

bool LookupScorer::Table::fits_bytes() const {
  return *std::max_element(begin, end) - least <= std::numeric_limits<std::uint8_t>::max();
}

// The block whose root is node `root` in heap order.
void LookupScorer::add_block(const std::vector<LookupInput>& inputs, const LookupEnsemble& ensemble,
                             const std::vector<std::int64_t>& first_value, std::int64_t tree, std::int64_t root,
                             int n_levels) {
  std::vector<Table> tables;
  const std::size_t first_lane = bias_.size();
  bias_.resize(first_lane + kBlockLanes, std::numeric_limits<float>::infinity());
  start_.resize(first_lane + kBlockLanes, 0);
  for (std::int64_t lane = 0; lane < (std::int64_t{1} << n_levels) - 1; ++lane) {
    const int level = std::bit_width(std::uint64_t(lane + 1)) - 1;
    const std::int64_t node = ((root + 1) << level) - 1 + lane + 1 - (std::int64_t{1} << level);
    const std::int64_t split = tree * ensemble.n_splits() + node;
    bias_[first_lane + lane] = ensemble.split_bias[split];
    for (std::int64_t i = ensemble.table_begin[split]; i < ensemble.table_begin[split + 1]; ++i) {
      const std::int16_t* const begin = ensemble.values + first_value[i];
      const std::int16_t* const end = begin + inputs[ensemble.table_column[i]].n_entries();
      tables.push_back({ensemble.table_column[i], lane, begin, end, *std::min_element(begin, end)});
    }
  }
  std::stable_sort(tables.begin(), tables.end(), [](const Table& a, const Table& b) { return a.column < b.column; });
  std::vector<std::pair<const Table*, const Table*>> wide;
  block_slot_.push_back(static_cast<std::int64_t>(slots_.size()));
  for (const Table *table = tables.data(), *const last = table + tables.size(); table < last;) {
    const Table* const end = std::find_if(table, last, [&](const Table& t) { return t.column != table->column; });
    if (std::all_of(table, end, [](const Table& t) { return t.fits_bytes(); })) {
      add_slot(bytes_, table, end);
    } else {
      wide.emplace_back(table, end);
    }
    table = end;
  }
  block_shorts_.push_back(static_cast<std::int64_t>(slots_.size()));
  for (const auto& [begin, end] : wide) add_slot(shorts_, begin, end);
}

template <typename T>
void LookupScorer::add_slot(std::vector<Pairs<T>>& pairs, const Table* begin, const Table* end) {
  slots_.push_back({nullptr, sizeof(ScoringCell) * std::uint64_t(begin->column)});
  slot_entry_.push_back(static_cast<std::int64_t>(pairs.size()));
  pairs.resize(pairs.size() + static_cast<std::size_t>(begin->end - begin->begin));
  std::int32_t* const start = start_.data() + start_.size() - kBlockLanes;
  for (const Table* table = begin; table < end; ++table) {
    const std::int16_t least = std::is_same_v<T, std::uint8_t> ? table->least : std::int16_t{0};
    start[table->lane] += std::int32_t(least) * std::int32_t(kOneFraction);
    Pairs<T>* to = pairs.data() + slot_entry_.back();
    for (const std::int16_t* v = table->begin; v < table->end; ++v, ++to) {
      to->values[2 * table->lane] = static_cast<T>(*v - least);
      if (v + 1 < table->end) to->values[2 * table->lane + 1] = static_cast<T>(v[1] - least);
    }
  }
}

void LookupScorer::add_scores(const ScoringRows& rows, double* scores, Arena& arena) const {
  const ArenaScope scope(arena);
  const std::int64_t n_scores = rows.n_rows * trees_.n_outputs;
  auto* const sums = arena.allocate<std::int32_t>(n_scores * kBlockLanes);
  std::fill_n(sums, n_scores * kBlockLanes, 0);
  scoring_kernels().add_scores(trees_, rows, sums, arena);
  for (std::int64_t i = 0; i < n_scores; ++i) {
    std::int64_t total = 0;
    for (std::int64_t lane = 0; lane < kBlockLanes; ++lane) total += sums[i * kBlockLanes + lane];
    scores[i] += double(total) * inverse_scale_;
  }
}

std::size_t LookupScorer::n_bytes() const {
  return bytes_.size() * sizeof(bytes_[0]) + shorts_.size() * sizeof(shorts_[0]) +
         start_.size() * sizeof(std::int32_t) + (bias_.size() + leaf_weight_.size()) * sizeof(float) +
         slots_.size() * sizeof(ScoringSlot);
}

}  // namespace softwood

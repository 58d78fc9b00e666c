// Prediction by trees of lookups: rows in slices, each of which one thread follows through all trees.
#include <algorithm>
#include <cmath>
#include <utility>

#include "lookup_layout.h"
#include "softwood/lookup.h"
#include "softwood/thread_pool.h"

namespace softwood {
namespace {

constexpr std::int64_t kSlice = 128;  // rows

// Entry and fraction of one value. Comparisons with NaN are false.
std::uint32_t cell_of(const LookupSource& source, float value) {
  if (std::isnan(value)) return source.missing_entry;
  if (source.n_knots == 0) {
    const bool known = value >= 0 && value < float(source.n_codes) && value == std::trunc(value);
    return known ? static_cast<std::uint32_t>(value) : source.unseen_entry;
  }
  const float* const knots = source.knots;
  const std::uint32_t last = source.n_knots - 1;
  if (!(value > knots[0])) return 0;
  if (value >= knots[last]) return last;
  const auto above = static_cast<std::uint32_t>(std::upper_bound(knots, knots + last, value) - knots);
  const double low = double(knots[above - 1]), high = double(knots[above]);
  const double fraction = (double(value) - low) / (high - low);
  return (above - 1) | static_cast<std::uint32_t>(std::lrint(fraction * 65535)) << 16;
}

}  // namespace

struct LookupPredictor::State {
  LookupLayout layout;
  LookupRows values;
  std::vector<float> leaf_weight, offset;
  Activation activation;
  float gamma;
  std::vector<LookupSource> sources;
  std::vector<std::vector<float>> knots;  // that the sources point to

  LookupForest forest() const {
    return {.layout = &layout,
            .kernels = &lookup_predictor_kernels(),
            .values = values.data(),
            .table = nullptr,
            .bias = nullptr,
            .build = nullptr,
            .leaf_weight = leaf_weight.data(),
            .n_outputs = static_cast<std::int64_t>(offset.size()),
            .activation = activation,
            .gamma = gamma};
  }

  // `fill(first, count, cells)` writes the cells of rows first, ..., first + count - 1.
  template <typename Fill>
  void score_slices(std::int64_t n_rows, float* scores, std::int32_t* leaves, int n_threads, const Fill& fill) const {
    const LookupForest forest = this->forest();
    const std::int64_t k = forest.n_outputs;
    parallel_for((n_rows + kSlice - 1) / kSlice, n_threads, [&](std::int64_t slice) {
      const std::int64_t first = slice * kSlice, count = std::min(kSlice, n_rows - first);
      thread_local Arena arena;
      const Arena::Mark before = arena.mark();
      LookupCell* const cells = arena.allocate<LookupCell>(count * layout.n_columns());
      fill(first, count, cells);
      if (leaves != nullptr) std::fill_n(leaves + first, count, 0);
      score_samples(forest, cells, count, offset.data(), scores + first * k,
                    leaves != nullptr ? leaves + first : nullptr, arena);
      arena.release(before);
    });
  }
};

LookupPredictor::LookupPredictor(const LookupTrees& trees) {
  // Only the numbers of entries and knots are needed: values are given.
  LookupLayout layout(trees.shape, trees.columns, trees.block_columns, false);
  const LookupShape& shape = trees.shape;
  const std::int64_t n_blocks = layout.n_blocks(), k = trees.n_outputs;
  LookupRows values(layout.n_value_rows());
  const float* from = trees.values;
  for (std::int64_t b = 0; b < n_blocks; ++b) {
    const LookupLayout::Block& block = layout.block(b);
    lookup_training_kernels().build_bias(layout.view(b, nullptr).n_levels, trees.split_bias + b * kBlockLanes,
                                         values.row(block.value_begin));
    const std::int64_t n_floats = (block.n_value_rows - 2) * kBlockLanes;
    std::copy_n(from, n_floats, values.row(block.value_begin + 1));
    from += n_floats;
  }
  const std::int64_t n_leaf_blocks = shape.n_trees * shape.n_leaf_blocks();
  state_ = std::make_unique<State>(
      State{std::move(layout),
            std::move(values),
            std::vector<float>(trees.leaf_weight, trees.leaf_weight + n_leaf_blocks * k * kBlockLanes),
            std::vector<float>(trees.offset, trees.offset + k),
            trees.activation,
            trees.gamma,
            trees.sources,
            {}});
  for (LookupSource& source : state_->sources) {
    state_->knots.emplace_back(source.knots, source.knots + source.n_knots);
    source.knots = state_->knots.back().data();
  }
}

LookupPredictor::~LookupPredictor() = default;
LookupPredictor::LookupPredictor(LookupPredictor&&) noexcept = default;

std::int64_t LookupPredictor::n_columns() const { return state_->layout.n_columns(); }
std::int64_t LookupPredictor::n_outputs() const { return static_cast<std::int64_t>(state_->offset.size()); }

void LookupPredictor::scores(const std::uint32_t* cells, std::int64_t n_rows, float* scores, std::int32_t* leaves,
                             int n_threads) const {
  const std::int64_t q = n_columns();
  state_->score_slices(n_rows, scores, leaves, n_threads,
                       [&](std::int64_t first, std::int64_t count, LookupCell* decoded) {
                         decode_cells(cells + first * q, count * q, decoded);
                       });
}

void LookupPredictor::scores_of_base(const Rows<float>& base, float* scores, std::int32_t* leaves,
                                     int n_threads) const {
  state_->score_slices(base.n_rows, scores, leaves, n_threads,
                       [&](std::int64_t first, std::int64_t count, LookupCell* decoded) {
                         for (std::int64_t i = first; i < first + count; ++i) {
                           for (const LookupSource& source : state_->sources) {
                             const std::uint32_t cell = cell_of(source, base.row(i)[source.base_column]);
                             decode_cells(&cell, 1, decoded++);
                           }
                         }
                       });
}

void lookup_cells(const std::vector<LookupSource>& sources, const Rows<float>& base, std::uint32_t* cells,
                  int n_threads) {
  const auto q = static_cast<std::int64_t>(sources.size());
  parallel_for((base.n_rows + kSlice - 1) / kSlice, n_threads, [&](std::int64_t slice) {
    const std::int64_t end = std::min(base.n_rows, (slice + 1) * kSlice);
    for (std::int64_t i = slice * kSlice; i < end; ++i) {
      const float* const row = base.row(i);
      for (std::int64_t c = 0; c < q; ++c) cells[i * q + c] = cell_of(sources[c], row[sources[c].base_column]);
    }
  });
}

}  // namespace softwood

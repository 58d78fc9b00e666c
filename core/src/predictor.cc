#include "softwood/predictor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <type_traits>
#include <utility>

#include "lookup_predictor.h"
#include "predictor_kernels.h"
#include "softwood/thread_pool.h"

namespace softwood {
namespace {

constexpr std::size_t kAlignment = 64;

// Memory for numbers, aligned to cache lines; it never shrinks.
template <typename T>
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { ::operator delete(data_, std::align_val_t{kAlignment}); }

  T* reserve(std::int64_t n) {
    if (n > size_) {
      ::operator delete(std::exchange(data_, nullptr), std::align_val_t{kAlignment});
      size_ = 0;
      data_ = static_cast<T*>(::operator new(static_cast<std::size_t>(n) * sizeof(T), std::align_val_t{kAlignment}));
      size_ = n;
    }
    return data_;
  }
  T* data() const { return data_; }
  std::size_t n_bytes() const { return static_cast<std::size_t>(size_) * sizeof(T); }

 private:
  T* data_ = nullptr;
  std::int64_t size_ = 0;
};

struct Scratch {
  Buffer<float> base, inputs, panels, probability;
  Buffer<double> scores, sums;
  Buffer<std::int32_t> pair;

  PredictorScratch for_trees(const PredictorTrees& trees) {
    PredictorScratch found;
    found.panels = panels.reserve(kMaxRows * trees.width);
    std::int32_t* const pairs = pair.reserve((trees.depth + 1) * kWaitingRoom);
    float* const probabilities = probability.reserve((trees.depth + 1) * kWaitingRoom);
    for (int level = 0; level <= trees.depth; ++level) {
      found.waiting[level] = {pairs + level * kWaitingRoom, probabilities + level * kWaitingRoom, 0};
    }
    return found;
  }
};

Scratch& scratch() {
  thread_local Scratch held;
  return held;
}

std::int64_t padded_width(std::int64_t n_features) {
  return (n_features + 1 + kPartialSums - 1) / kPartialSums * kPartialSums;
}

// Month (1 to 12), weekday (0 is Monday) or hour in UTC of seconds since 1970, which are truncated.
float calendar_part(BaseKind kind, double seconds) {
  constexpr double kFarthest = 1e17;
  const auto whole = static_cast<std::int64_t>(std::clamp(seconds, -kFarthest, kFarthest));
  const std::int64_t days = whole / 86400 - (whole % 86400 < 0);
  if (kind == BaseKind::hour) return static_cast<float>((whole - days * 86400) / 3600);
  if (kind == BaseKind::weekday) return static_cast<float>(((days + 3) % 7 + 7) % 7);  // 1 January 1970 was a Thursday
  // The calendar repeats every 146097 days; with years that begin in March, five months always have 153 days.
  const std::int64_t day_of_era = ((days + 719468) % 146097 + 146097) % 146097;
  const std::int64_t year = (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146096) / 365;
  const std::int64_t day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
  const std::int64_t from_march = (5 * day_of_year + 2) / 153;
  return static_cast<float>(from_march < 10 ? from_march + 3 : from_march - 9);
}

float as_float(double value) {
  constexpr double kLargest = std::numeric_limits<float>::max();
  return static_cast<float>(value > kLargest ? kLargest : value < -kLargest ? -kLargest : value);
}

// Code of a category: that of missing cells for NaN, -1 if it is unknown.
std::int32_t code_of(const BaseColumn& column, double value) {
  if (std::isnan(value)) return column.missing_code;
  const bool known = value >= 0 && value < column.n_levels && value == std::floor(value);
  return known ? static_cast<std::int32_t>(value) : -1;
}

float read_column(const BaseColumn& column, double value) {
  switch (column.kind) {
    case BaseKind::number:
      return as_float((value - column.offset) / column.unit);
    case BaseKind::code:
      return static_cast<float>(code_of(column, value));
    case BaseKind::target_mean: {
      const std::int32_t code = code_of(column, value);
      return column.means[static_cast<std::size_t>(code < 0 ? column.n_levels : code)];
    }
    default:
      return std::isnan(value) ? std::numeric_limits<float>::quiet_NaN() : calendar_part(column.kind, value);
  }
}

double logistic(double score) { return 1 / (1 + std::exp(-score)); }

// Predictions of one row from its scores [k]; `output` may be `scores` unless the link is binary.
void apply_head(const PredictionHead& head, const double* scores, std::int64_t k, double* output) {
  if (head.link == Link::binary) {
    const double second = logistic(scores[0]);
    output[0] = 1 - second;
    output[1] = second;
    return;
  }
  if (head.link == Link::softmax) {
    const double largest = *std::max_element(scores, scores + k);
    double total = 0;
    for (std::int64_t c = 0; c < k; ++c) total += output[c] = std::exp(scores[c] - largest);
    for (std::int64_t c = 0; c < k; ++c) output[c] /= total;
    return;
  }
  if (head.link == Link::logistic) {
    std::transform(scores, scores + k, output, logistic);
    return;
  }
  const auto per_target = k / static_cast<std::int64_t>(head.target_mean.size());
  for (std::int64_t c = 0; c < k; ++c) {
    const auto target = static_cast<std::size_t>(c / per_target);
    const double value = head.link == Link::exponential ? std::exp(scores[c]) : scores[c];
    output[c] = value * head.target_scale[target] + head.target_mean[target];
  }
}

void sort_quantiles(const PredictionHead& head, std::int64_t k, double* values, double* spare) {
  const auto q = static_cast<std::int64_t>(head.quantile_rank.size());
  for (std::int64_t begin = 0; begin < k; begin += q) {
    std::copy_n(values + begin, q, spare);
    std::sort(spare, spare + q);
    for (std::int64_t i = 0; i < q; ++i) values[begin + i] = spare[head.quantile_rank[static_cast<std::size_t>(i)]];
  }
}

}  // namespace

struct Predictor::Trees {
  std::int64_t encoding;
  Buffer<float> split_rows;
  Buffer<double> leaf_weight;
  PredictorTrees view;
};

struct Predictor::Lookups {
  std::vector<LookupInput> inputs;
  std::vector<CellReader> readers;
  std::vector<std::unique_ptr<LookupScorer>> members;

  // scores [n, k] += all members.
  void add_scores(const Rows<float>& base, double* scores) const {
    if (members.empty()) return;
    thread_local Arena arena;
    const ArenaScope scope(arena);
    auto* const cells = arena.allocate<ScoringCell>(base.n_rows * static_cast<std::int64_t>(readers.size()));
    ScoringCell* to = cells;
    for (std::int64_t i = 0; i < base.n_rows; ++i) {
      for (const CellReader& reader : readers) *to++ = reader.cell(base.row(i));
    }
    ScoringRows rows{cells, base.n_rows, static_cast<std::int64_t>(readers.size()), nullptr};
    if (base.n_rows >= kMinUsualRows) rows.usual = usual_cells(rows, arena);
    for (const auto& member : members) member->add_scores(rows, scores, arena);
  }
};

Predictor::Predictor(std::int64_t n_columns, std::int64_t n_outputs, std::vector<BaseColumn> base,
                     std::vector<Encoding> encodings, std::vector<LookupInput> lookups, PredictionHead head)
    : n_columns_(n_columns),
      n_outputs_(n_outputs),
      base_(std::move(base)),
      plain_(static_cast<std::int64_t>(base_.size()) == n_columns),
      encodings_(std::move(encodings)),
      lookups_(std::make_unique<Lookups>()),
      offset_(static_cast<std::size_t>(n_outputs)),
      head_(std::move(head)) {
  for (std::size_t b = 0; b < base_.size(); ++b) {
    const BaseColumn& column = base_[b];
    plain_ = plain_ && column.kind == BaseKind::number && column.source == static_cast<std::int32_t>(b) &&
             column.offset == 0 && column.unit == 1;
  }
  for (const LookupInput& input : lookups) lookups_->readers.emplace_back(input);
  lookups_->inputs = std::move(lookups);
}

Predictor::~Predictor() = default;

void Predictor::add_member(const float* offset) {
  for (std::int64_t c = 0; c < n_outputs_; ++c) offset_[static_cast<std::size_t>(c)] += static_cast<double>(offset[c]);
  ++n_members_;
}

void Predictor::add_trees(std::int64_t encoding, const Ensemble<float>& ensemble, double rounder) {
  auto held = std::make_unique<Trees>();
  const std::int64_t m = ensemble.n_trees, p = ensemble.n_features, k = ensemble.n_outputs, width = padded_width(p);
  const std::int64_t n_splits = ensemble.n_splits(), n_leaf_weights = m * ensemble.n_leaves() * k;
  float* to = held->split_rows.reserve(m * n_splits * width);
  for (int level = 0; level < ensemble.depth; ++level) {
    const std::int64_t first = (std::int64_t{1} << level) - 1, n_nodes = std::int64_t{1} << level;
    for (std::int64_t tree = 0; tree < m; ++tree) {
      for (std::int64_t split = tree * n_splits + first; split < tree * n_splits + first + n_nodes; ++split) {
        std::copy_n(ensemble.split_weight + split * p, p, to);
        to[p] = ensemble.split_bias != nullptr ? ensemble.split_bias[split] : 0;
        std::fill(to + p + 1, to + width, 0.0F);
        to += width;
      }
    }
  }
  std::copy_n(ensemble.leaf_weight, n_leaf_weights, held->leaf_weight.reserve(n_leaf_weights));
  held->encoding = encoding;
  held->view = {held->split_rows.data(), held->leaf_weight.data(), m,      width, k, ensemble.depth,
                ensemble.activation,     ensemble.gamma,           rounder};
  trees_.push_back(std::move(held));
}

void Predictor::add_lookups(const LookupEnsemble& ensemble) {
  lookups_->members.push_back(std::make_unique<LookupScorer>(lookups_->inputs, ensemble));
}

std::size_t Predictor::n_bytes() const {
  std::size_t total = 0;
  for (const auto& member : lookups_->members) total += member->n_bytes();
  for (const auto& trees : trees_) total += trees->split_rows.n_bytes() + trees->leaf_weight.n_bytes();
  return total;
}

void Predictor::score_block(const Rows<float>& base, double* scores) const {
  for (std::int64_t i = 0; i < base.n_rows; ++i) std::copy(offset_.begin(), offset_.end(), scores + i * n_outputs_);
  lookups_->add_scores(base, scores);
  for (std::int64_t begin = 0; begin < base.n_rows && !trees_.empty(); begin += kMaxRows) {
    const std::int64_t size = std::min(kMaxRows, base.n_rows - begin);
    score_features({base.row(begin), size, base.row_stride}, scores + begin * n_outputs_);
  }
  const auto n_members = static_cast<double>(n_members_);
  for (std::int64_t i = 0; i < base.n_rows * n_outputs_; ++i) scores[i] /= n_members;
}

// Adds the trees of linear splits, of at most kMaxRows rows.
void Predictor::score_features(const Rows<float>& base, double* scores) const {
  Scratch& held = scratch();
  const std::int64_t n_rows = base.n_rows;
  for (std::size_t e = 0; e < encodings_.size(); ++e) {
    const Encoding& encoding = encodings_[e];
    const std::int64_t p = encoding.n_features(), width = padded_width(p);
    float* const inputs = held.inputs.reserve(n_rows * width);
    for (std::int64_t i = 0; i < n_rows; ++i) {
      float* const row = inputs + i * width;
      encode_row(encoding, base.row(i), row);
      row[p] = 1;
      std::fill(row + p + 1, row + width, 0.0F);
    }
    for (const auto& trees : trees_) {
      if (trees->encoding != static_cast<std::int64_t>(e)) continue;
      PredictorScratch for_trees = held.for_trees(trees->view);
      double* const sums = held.sums.reserve(kMaxRows * n_outputs_);
      const std::int64_t n_padded = (n_rows + kPartialSums - 1) / kPartialSums * kPartialSums;
      for (std::int64_t c = 0; c < n_outputs_; ++c) std::fill_n(sums + c * kMaxRows, n_padded, 0.0);
      predictor_kernels().add_scores(trees->view, inputs, n_rows, sums, for_trees);
      for (std::int64_t i = 0; i < n_rows; ++i) {
        for (std::int64_t c = 0; c < n_outputs_; ++c) scores[i * n_outputs_ + c] += sums[c * kMaxRows + i];
      }
    }
  }
}

// Lookups are read from memory once per block of rows, so that long blocks are faster, but threads want some each, and
// cells and sums should stay in the cache.
std::int64_t Predictor::rows_per_block(std::int64_t n_rows, int n_threads) const {
  if (lookups_->members.empty()) return kMaxRows;
  const std::int64_t per_row = 2 * static_cast<std::int64_t>(lookups_->inputs.size()) + kBlockLanes * n_outputs_;
  const std::int64_t most = std::min(kMaxScoringRows, (std::int64_t{1} << 17) / per_row);
  const std::int64_t share = (n_rows + n_threads - 1) / n_threads;
  return std::max(kMaxRows, std::min(most, share) / kMaxRows * kMaxRows);
}

// `reader` provides the base rows of a block, or returns the index of a column that contains an infinity.
template <typename Reader>
std::int64_t Predictor::run(std::int64_t n_rows, const Reader& reader, bool raw_scores, double* output,
                            int n_threads) const {
  const std::int64_t k = n_outputs_, n_predictions = raw_scores ? k : this->n_predictions();
  const std::int64_t block_rows = rows_per_block(n_rows, n_threads), n_blocks = (n_rows + block_rows - 1) / block_rows;
  const auto run_block = [&](std::int64_t block) -> std::int64_t {
    const std::int64_t begin = block * block_rows, size = std::min(block_rows, n_rows - begin);
    Rows<float> base{};
    const std::int64_t infinite_column = reader(begin, size, base);
    if (infinite_column >= 0) return infinite_column;
    if (raw_scores) {
      score_block(base, output + begin * k);
      return -1;
    }
    double* const scores = scratch().scores.reserve((size + 1) * k);
    score_block(base, scores);
    for (std::int64_t i = 0; i < size; ++i) {
      double* const to = output + (begin + i) * n_predictions;
      apply_head(head_, scores + i * k, k, to);
      if (!head_.quantile_rank.empty()) sort_quantiles(head_, k, to, scores + size * k);
    }
    return -1;
  };
  if (n_blocks == 1) return run_block(0);
  std::vector<std::int64_t> infinite_column(static_cast<std::size_t>(n_blocks), -1);
  parallel_for(n_blocks, n_threads,
               [&](std::int64_t block) { infinite_column[static_cast<std::size_t>(block)] = run_block(block); });
  const auto found =
      std::find_if(infinite_column.begin(), infinite_column.end(), [](std::int64_t j) { return j >= 0; });
  return found == infinite_column.end() ? -1 : *found;
}

template <typename T>
std::int64_t Predictor::predict(const Rows<T>& rows, bool raw_scores, double* output, int n_threads) const {
  const auto read = [&](std::int64_t begin, std::int64_t size, Rows<float>& base) -> std::int64_t {
    const std::int64_t at_once = rows.row_stride == n_columns_ ? size : 1;  // contiguous rows
    for (std::int64_t i = begin; i < begin + size; i += at_once) {
      const std::int64_t infinity = first_infinity(rows.row(i), at_once * n_columns_);
      if (infinity >= 0) return infinity % n_columns_;
    }
    if constexpr (std::is_same_v<T, float>) {
      if (plain_) {
        base = {rows.row(begin), size, rows.row_stride};
        return -1;
      }
    }
    const std::int64_t q = n_base_columns();
    float* to = scratch().base.reserve(size * q);
    base = {to, size, q};
    for (std::int64_t i = begin; i < begin + size; ++i, to += q) {
      const T* const row = rows.row(i);
      if (plain_) {
        for (std::int64_t b = 0; b < q; ++b) to[b] = as_float(static_cast<double>(row[b]));
        continue;
      }
      for (std::int64_t b = 0; b < q; ++b) {
        const BaseColumn& column = base_[static_cast<std::size_t>(b)];
        to[b] = read_column(column, static_cast<double>(row[column.source]));
      }
    }
    return -1;
  };
  return run(rows.n_rows, read, raw_scores, output, n_threads);
}

void Predictor::predict_base(const Rows<float>& rows, bool raw_scores, double* output, int n_threads) const {
  const auto read = [&](std::int64_t begin, std::int64_t size, Rows<float>& base) -> std::int64_t {
    base = {rows.row(begin), size, rows.row_stride};
    return -1;
  };
  run(rows.n_rows, read, raw_scores, output, n_threads);
}

template std::int64_t Predictor::predict<float>(const Rows<float>&, bool, double*, int) const;
template std::int64_t Predictor::predict<double>(const Rows<double>&, bool, double*, int) const;

}  // namespace softwood

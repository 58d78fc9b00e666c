// A fitted model, compiled once for prediction: rows of a table in, predictions out. Immutable, so any number of
// threads may use one at a time; nothing is allocated per row, and per thread only at first.
//
// A row passes four steps: columns to base row, base row to the inputs of the trees (softwood/encoding.h), trees to raw
// scores, raw scores to predictions. The first two and the trees' splits are computed in float, sums over leaves
// and what follows in double. Each sum of a split is taken in one fixed order, on every instruction set
// and in the C that src/softwood/export writes: eight partial sums over the features f, f + 8, ..., of which first
// those four apart are added, then those two apart, then the last two, no multiplication fused with an addition. Shares
// of leaves are rounded so that their sums are exact and their order does not matter. So raw scores are the same to the
// bit on every machine, for every number of threads, and whatever the rows beside a row (but for the logistic function,
// whose exponentials differ).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "softwood/encoding.h"
#include "softwood/ensemble.h"

namespace softwood {

// What a base column holds; docs/file-format.md has the definitions.
enum class BaseKind : int { number = 0, code = 1, month = 2, weekday = 3, hour = 4, target_mean = 5 };

struct BaseColumn {
  BaseKind kind;
  std::int32_t source;        // column of the table
  double offset, unit;        // of numbers and dates
  std::int32_t n_levels;      // of categories
  std::int32_t missing_code;  // code of a missing category
  std::vector<float> means;   // [n_levels + 1], target means; the last is for categories that belong to no level
};

// Owns what softwood::Encoding views.
struct EncodingArrays {
  std::vector<std::int32_t> source;
  std::vector<float> start, rate, mean, scale;
  std::vector<float> bound;  // or empty
  std::array<std::int64_t, kFeatureKinds + 1> begin;
  bool in_order = false;
  Encoding view() const {
    const float* const bounds = bound.empty() ? nullptr : bound.data();
    return {source.data(), start.data(), rate.data(), mean.data(), scale.data(), bounds, begin, in_order};
  }
};

enum class Link : int { identity = 0, exponential = 1, binary = 2, softmax = 3 };

// How raw scores [k] become predictions: the link, then for a regression scale and mean by target, then, for quantiles,
// sorting. Outputs of one target stand side by side.
struct PredictionHead {
  Link link;
  std::vector<double> target_mean, target_scale;  // [t]; empty for a classification
  std::vector<std::int32_t> quantile_rank;  // place of each quantile of a target in rising order; empty: no quantiles
};

class Predictor {
 public:
  Predictor(std::int64_t n_columns, std::int64_t n_outputs, std::vector<BaseColumn> base,
            std::vector<EncodingArrays> encodings, PredictionHead head);
  ~Predictor();
  Predictor(const Predictor&) = delete;
  Predictor& operator=(const Predictor&) = delete;

  // Scores are the mean over members of `offset` [k] plus the member's trees, which `add_trees` adds.
  void add_member(const float* offset);

  // Takes a copy. `encoding` is a number of an encoding, whose features the ensemble reads. A leaf's
  // share of a score is rounded to multiples of rounder / (3 * 2^51), where rounder is three times a power of two; the
  // sum over trees of the largest leaf weight must be at most rounder / 6.
  void add_trees(std::int64_t encoding, const Ensemble<float>& ensemble, double rounder);

  std::int64_t n_columns() const { return n_columns_; }
  std::int64_t n_base_columns() const { return static_cast<std::int64_t>(base_.size()); }
  std::int64_t n_outputs() const { return n_outputs_; }
  std::int64_t n_predictions() const { return head_.link == Link::binary ? 2 : n_outputs_; }
  std::size_t n_bytes() const;  // of weights, as they are laid out

  // Writes predictions [n, n_predictions] (or raw scores [n, k]) of rows of the table: numbers (dates in seconds since
  // 1970, categories by code), NaN where missing. Returns -1, or the number of the first column that holds an infinity.
  template <typename T>
  std::int64_t predict(const Rows<T>& rows, bool raw_scores, double* output, int n_threads) const;

  // The same from base rows, which must hold no infinity.
  void predict_base(const Rows<float>& base, bool raw_scores, double* output, int n_threads) const;

 private:
  struct Trees;
  template <typename Reader>
  std::int64_t run(std::int64_t n_rows, const Reader& reader, bool raw_scores, double* output, int n_threads) const;
  void score_block(const Rows<float>& base, double* scores) const;

  std::int64_t n_columns_, n_outputs_;
  std::vector<BaseColumn> base_;
  bool plain_;  // base rows are the table's rows, rounded
  std::vector<EncodingArrays> encodings_;
  std::vector<std::unique_ptr<Trees>> trees_;
  std::int64_t n_members_ = 0;
  std::vector<double> offset_;  // [k], summed over members
  PredictionHead head_;
};

}  // namespace softwood

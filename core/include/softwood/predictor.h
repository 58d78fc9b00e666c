// A fitted model, compiled once for prediction: rows of a table in, predictions out. Immutable, so several threads may
// use it at the same time; nothing is allocated per row, and per thread only in its first call.
//
// A row passes four steps: columns to base row, base row to what the trees read, trees to raw scores, raw scores to
// predictions. There are two kinds of trees.
//
// Trees of linear splits read features (softwood/encoding.h). Features and split values are computed in float, sums
// over leaves and everything after them in double. The sum of a split value is taken in one fixed order, on every
// instruction set and in the exported C code: eight partial sums over the features f, f + 8, ..., of which first those
// at a distance of four are added, then those at a distance of two, then the last two; no multiplication is fused with
// an addition. The contributions of leaves are rounded so that their sums are exact in any order.
//
// Trees of lookups read cells (LookupInput). A split value is float(T) * unit + bias, where T is a sum of integers; the
// probability of a leaf is the product, from the root down and in float, of those of the steps to it, S(t) to the left
// and 1 - S(t) to the right; a leaf adds to the score the integer nearest to float(probability * weight * leaf_scale).
//
// Raw scores are therefore bit-identical on every machine, for every number of threads, and whichever rows are in the
// same block (except with the logistic function, whose exponentials differ).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "softwood/encoding.h"
#include "softwood/ensemble.h"

namespace softwood {

// The content of a base column; defined in docs/file-format.md.
enum class BaseKind : int { number = 0, code = 1, month = 2, weekday = 3, hour = 4, target_mean = 5 };

struct BaseColumn {
  BaseKind kind;
  std::int32_t source;        // index of the column of the table
  double offset, unit;        // of numbers and dates
  std::int32_t n_levels;      // of categories
  std::int32_t missing_code;  // code of a missing category
  std::vector<float> means;   // [n_levels + 1], target means; the last one is for unknown categories
};

// How the cells of a lookup column are made of a base column. Its entries are the knots of a number, or the codes of a
// category, and one more for values that are missing or no known code. A number x has the entry of the last knot that
// is not above it (or of the first) and the fraction
//   round((x - knot) * float(kOneFraction / (next knot - knot))) / kOneFraction
// of the way to the next knot, held within 0 and 1, computed in float; beyond the last knot it has none.
struct LookupInput {
  std::int32_t base_column;
  std::vector<float> knots;  // increasing; empty for a category
  std::int32_t n_codes;      // of a category: 0, ..., n_codes - 1

  std::int64_t n_entries() const { return static_cast<std::int64_t>(knots.empty() ? n_codes : knots.size()) + 1; }
};
inline constexpr float kOneFraction = 16384;

// Trees whose splits are sums of tables, one value per entry of a column, times a step:
//   t = bias + step * sum over the split's tables of (1 - f) V[e] + f V[e + 1].
// Splits stand tree by tree in heap order; split i has the tables table_begin[i], ..., table_begin[i + 1] - 1.
struct LookupEnsemble {
  std::int64_t n_trees, n_outputs;
  int depth;
  const std::int64_t* table_begin;   // [m (2^d - 1) + 1]
  const std::int32_t* table_column;  // [tables]; the columns of one split differ
  const std::int16_t* values;        // those of all tables; for each split, the sum of the largest is below 2^16
  const float* split_bias;           // [m, 2^d - 1]
  const float* leaf_weight;          // [m, 2^d, k]
  Activation activation;
  float gamma;
  float step;        // a power of two
  float leaf_scale;  // a power of two; times the sum over trees of the largest leaf weight it is at most 2^30

  std::int64_t n_splits() const { return (std::int64_t{1} << depth) - 1; }
};

// `logistic`: each score is the log-odds of a label of its own.
enum class Link : int { identity = 0, exponential = 1, binary = 2, softmax = 3, logistic = 4 };

// How raw scores [k] become predictions: the link, then for a regression the scale and mean of each target, then
// sorting of quantiles. The outputs of one target are adjacent.
struct PredictionHead {
  Link link;
  std::vector<double> target_mean, target_scale;  // [t]; empty for a classification
  std::vector<std::int32_t> quantile_rank;  // rank of each quantile of a target in ascending order; empty: no quantiles
};

class Predictor {
 public:
  Predictor(std::int64_t n_columns, std::int64_t n_outputs, std::vector<BaseColumn> base,
            std::vector<Encoding> encodings, std::vector<LookupInput> lookups, PredictionHead head);
  ~Predictor();
  Predictor(const Predictor&) = delete;
  Predictor& operator=(const Predictor&) = delete;

  // Scores are the mean over members of `offset` [k] plus the trees of the member, which `add_trees` or `add_lookups`
  // adds.
  void add_member(const float* offset);

  // Copies the ensemble, which reads the features of the encoding with index `encoding`. The contribution of a leaf is
  // rounded to a multiple of rounder / (3 * 2^51), where rounder is three times a power of two; the sum over trees of
  // the largest leaf weight must be at most rounder / 6.
  void add_trees(std::int64_t encoding, const Ensemble<float>& ensemble, double rounder);

  // Copies the ensemble.
  void add_lookups(const LookupEnsemble& ensemble);

  std::int64_t n_columns() const { return n_columns_; }
  std::int64_t n_base_columns() const { return static_cast<std::int64_t>(base_.size()); }
  std::int64_t n_outputs() const { return n_outputs_; }
  std::int64_t n_predictions() const { return head_.link == Link::binary ? 2 : n_outputs_; }
  std::size_t n_bytes() const;  // of the weights, including padding

  // Writes predictions [n, n_predictions] (or raw scores [n, k]) of rows of the table: numbers (dates in seconds since
  // 1970, categories by code), NaN where missing. Returns -1, or the index of a column that contains an infinity.
  template <typename T>
  std::int64_t predict(const Rows<T>& rows, bool raw_scores, double* output, int n_threads) const;

  // The same from base rows, which must hold no infinity.
  void predict_base(const Rows<float>& base, bool raw_scores, double* output, int n_threads) const;

 private:
  struct Trees;
  struct Lookups;
  template <typename Reader>
  std::int64_t run(std::int64_t n_rows, const Reader& reader, bool raw_scores, double* output, int n_threads) const;
  void score_block(const Rows<float>& base, double* scores) const;
  void score_features(const Rows<float>& base, double* scores) const;
  std::int64_t rows_per_block(std::int64_t n_rows, int n_threads) const;

  std::int64_t n_columns_, n_outputs_;
  std::vector<BaseColumn> base_;
  bool plain_;  // base rows are the rows of the table, rounded to float
  std::vector<Encoding> encodings_;
  std::vector<std::unique_ptr<Trees>> trees_;
  std::unique_ptr<Lookups> lookups_;
  std::int64_t n_members_ = 0;
  std::vector<double> offset_;  // [k], summed over members
  PredictionHead head_;
};

}  // namespace softwood

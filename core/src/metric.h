// How well scores predict, for display during training: accuracy, or R squared of predicted means. Training does not
// depend on it.
#pragma once

#include <cstdint>
#include <vector>

#include "softwood/loss.h"

namespace softwood {

template <typename T>
class Metric {
 public:
  explicit Metric(const Loss<T>& loss) : loss_(loss), targets_(static_cast<std::size_t>(loss.n_targets)) {}

  // Rows as for Loss::evaluate.
  void add(const T* scores, const T* targets, const T* weight, std::int64_t n_rows);

  // Mean over targets; NaN without rows and for losses whose scores are neither classes nor means.
  double value() const;

 private:
  // Of one target. Values are relative to the first one, for precision if they are large.
  struct Sums {
    double origin = 0, weight = 0, right = 0, residual_square = 0, value = 0, square = 0;
  };
  const Loss<T>& loss_;
  std::vector<Sums> targets_;
};

}  // namespace softwood

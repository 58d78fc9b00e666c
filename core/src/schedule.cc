#include <algorithm>
#include <cmath>
#include <numbers>

#include "softwood/trainer.h"

namespace softwood {

double Schedule::learning_rate_at(std::int64_t step) const {
  const double warmup_steps = std::floor(warmup * double(n_steps));
  if (double(step) < warmup_steps) return learning_rate * double(step + 1) / warmup_steps;
  if (!cosine) return learning_rate;
  const double progress = (double(step) - warmup_steps) / std::max(1.0, double(n_steps) - warmup_steps);
  return learning_rate * 0.5 * (1 + std::cos(std::numbers::pi * std::min(1.0, progress)));
}

double Schedule::gamma_at(std::int64_t step) const {
  const double progress = double(step) / double(std::max<std::int64_t>(1, n_steps - 1));
  const double span = std::max(1e-12, anneal_end - anneal_begin);
  const double share = std::clamp((progress - anneal_begin) / span, 0.0, 1.0);
  return share == 1 ? gamma_end : gamma * std::pow(gamma_end / gamma, share);
}

}  // namespace softwood

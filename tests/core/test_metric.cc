// metric.h: accuracy and R squared by hand, weighted, over several calls; NaN where it is not defined.
#include "metric.h"

#include <cmath>

#include "check.h"

using namespace softwood;

namespace {

bool near(double a, double b) { return std::abs(a - b) <= 1e-6 * (1 + std::abs(b)); }

template <typename T>
void classes() {
  const Loss<T> loss{LossKind::cross_entropy, 3, 1};
  const T scores[] = {0, 2, 1, /**/ 3, 2, 1, /**/ 0, 0, 1}, targets[] = {1, 2, 2}, weight[] = {1, 5, 2};
  Metric<T> plain(loss), weighted(loss);
  CHECK(std::isnan(plain.value()));
  plain.add(scores, targets, nullptr, 2);
  plain.add(scores + 6, targets + 2, nullptr, 1);
  CHECK(near(plain.value(), 2.0 / 3));
  weighted.add(scores, targets, weight, 3);
  CHECK(near(weighted.value(), 3.0 / 8));

  const Loss<T> binary{LossKind::binary_cross_entropy, 1, 1};
  const T logits[] = {-1, 1, 2, -3}, labels[] = {0, 0, 1, 0};
  Metric<T> right(binary);
  right.add(logits, labels, nullptr, 4);
  CHECK(near(right.value(), 0.75));
}

template <typename T>
void means() {
  const Loss<T> loss{LossKind::squared_error, 2, 2};
  const T scores[] = {1, 20, /**/ 2, 20, /**/ 3, 20}, targets[] = {1, 10, /**/ 2, 20, /**/ 3, 30};
  Metric<T> metric(loss);
  metric.add(scores, targets, nullptr, 3);
  CHECK(near(metric.value(), (1.0 + 0.0) / 2));  // the first is right, the second no better than its mean

  const Loss<T> one{LossKind::huber, 1, 1};
  const T far[] = {1000001, 1000002, 1000005}, near_far[] = {1000001, 1000002, 1000004}, constant[] = {4, 4, 4};
  Metric<T> large(one), none(one);
  large.add(near_far, far, nullptr, 3);
  CHECK(near(large.value(), 1 - 1.0 / (26.0 / 3)));
  none.add(constant, constant, nullptr, 3);
  CHECK(std::isnan(none.value()));  // nothing varies

  const Loss<T> rates{LossKind::poisson, 1, 1};
  Metric<T> unknown(rates);
  unknown.add(constant, constant, nullptr, 3);
  CHECK(std::isnan(unknown.value()));
}

}  // namespace

int main() {
  classes<float>();
  classes<double>();
  means<float>();
  means<double>();
  return softwood::testing::report();
}

// predictor.h: against the forward pass in double, alone and in bulk, on few and on many threads, with hand-made
// columns.
#include "softwood/predictor.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "check.h"

using namespace softwood;

namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// The features are the columns themselves.
Encoding identity_encoding(std::int64_t p) {
  const auto size = static_cast<std::size_t>(p);
  Encoding arrays{};
  for (std::int32_t j = 0; j < p; ++j) arrays.source.push_back(j);
  arrays.start.assign(size, 0);
  arrays.rate.assign(size, 1);
  arrays.mean.assign(size, 0);
  arrays.scale.assign(size, 1);
  arrays.begin = {0, p, p, p, p, p};
  return arrays;
}

std::vector<BaseColumn> numbers(std::int64_t p) {
  std::vector<BaseColumn> columns;
  for (std::int32_t j = 0; j < p; ++j) columns.push_back({BaseKind::number, j, 0, 1, 0, -1, {}});
  return columns;
}

PredictionHead regression(std::int64_t k) {
  const auto size = static_cast<std::size_t>(k);
  return {Link::identity, std::vector<double>(size, 0), std::vector<double>(size, 1), {}};
}

struct Shape {
  std::int64_t m, p, k;
  int d;
  float spread;  // standard deviation of split values, in units of gamma
};

void same_as_forward(const Shape& shape, Activation activation) {
  const auto [m, p, k, d, spread] = shape;
  std::mt19937 generator(7);
  std::normal_distribution<float> normal;
  const auto random = [&](std::int64_t n, float scale) {
    std::vector<float> values(static_cast<std::size_t>(n));
    for (float& value : values) value = scale * normal(generator);
    return values;
  };
  const std::int64_t n = 141, n_leaves = std::int64_t{1} << d;
  const auto x = random(n * p, 1), w = random(m * (n_leaves - 1) * p, spread / std::sqrt(float(p)));
  const auto b = random(m * (n_leaves - 1), spread / 2), o = random(m * n_leaves * k, 1);
  const std::vector<float> offset(static_cast<std::size_t>(k), 0.5F);
  Predictor predictor(p, k, numbers(p), {identity_encoding(p)}, regression(k));
  predictor.add_member(offset.data());
  predictor.add_trees(0, {w.data(), b.data(), o.data(), m, p, k, d, activation, 1.0F}, 0x3p10);

  const std::vector<double> x2(x.begin(), x.end()), w2(w.begin(), w.end()), b2(b.begin(), b.end()),
      o2(o.begin(), o.end());
  std::vector<double> expected(static_cast<std::size_t>(n * k)), bulk(expected.size()), threads(expected.size());
  forward<double>({w2.data(), b2.data(), o2.data(), m, p, k, d, activation, 1.0}, {x2.data(), n, p}, true,
                  expected.data(), nullptr, 1);
  CHECK(predictor.predict<float>({x.data(), n, p}, false, bulk.data(), 1) == -1);
  CHECK(predictor.predict<double>({x2.data(), n, p}, true, threads.data(), 3) == -1);
  CHECK(bulk == threads);
  double worst = 0;
  for (std::size_t i = 0; i < bulk.size(); ++i) worst = std::max(worst, std::abs(bulk[i] - 0.5 - expected[i]));
  CHECK(worst < 2e-6 * double(m));
  std::vector<double> one(static_cast<std::size_t>(k));
  for (std::int64_t i = 0; i < n; ++i) {
    CHECK(predictor.predict<float>({x.data() + i * p, 1, p}, false, one.data(), 1) == -1);
    CHECK(std::equal(one.begin(), one.end(), bulk.begin() + i * k));
  }
}

// One stump on the last base column, whose leaves tell the side of a row.
double side(const std::vector<BaseColumn>& columns, const std::vector<double>& row, float border) {
  const auto q = static_cast<std::int64_t>(columns.size());
  std::vector<float> w(static_cast<std::size_t>(q), 0);
  w.back() = 1;
  const float bias = -border, leaves[2] = {1, 0}, offset = 0;
  Predictor predictor(static_cast<std::int64_t>(row.size()), 1, columns, {identity_encoding(q)}, regression(1));
  predictor.add_member(&offset);
  predictor.add_trees(0, {w.data(), &bias, leaves, 1, q, 1, 1, Activation::smooth_step, 1e-6F}, 0x3p10);
  double output = 0;
  const auto n_columns = static_cast<std::int64_t>(row.size());
  CHECK(predictor.predict<double>({row.data(), 1, n_columns}, false, &output, 1) == -1);
  return output;
}

// The base value of a cell, among whole numbers from -1 to 24.
int value_of(const BaseColumn& column, double cell) {
  int value = -2;
  while (value < 25 && side({column}, {cell}, float(value) + 0.5F) == 1) ++value;
  return value;
}

void columns_are_read() {
  const BaseColumn month{BaseKind::month, 0, 0, 1, 0, -1, {}}, weekday{BaseKind::weekday, 0, 0, 1, 0, -1, {}};
  const BaseColumn hour{BaseKind::hour, 0, 0, 1, 0, -1, {}};
  const double leap_day = 951782400 + 13.5 * 3600;  // 29 February 2000, a Tuesday
  CHECK(value_of(month, leap_day) == 2);
  CHECK(value_of(weekday, leap_day) == 1);
  CHECK(value_of(hour, leap_day) == 13);
  CHECK(value_of(month, -1) == 12);  // the last second of 1969, a Wednesday
  CHECK(value_of(weekday, -1) == 2);
  CHECK(value_of(hour, -1) == 23);
  const BaseColumn code{BaseKind::code, 0, 0, 1, 4, 3, {}};
  CHECK(value_of(code, 2) == 2);
  CHECK(value_of(code, kNaN) == 3);
  for (double unknown : {-1.0, 4.0, 1.5, 1e300}) CHECK(value_of(code, unknown) == -1);
  const BaseColumn mean{BaseKind::target_mean, 0, 0, 1, 2, -1, {5, 6, 7}};
  CHECK(value_of(mean, 1) == 6);
  CHECK(value_of(mean, kNaN) == 7);
  CHECK(value_of({BaseKind::number, 0, 100, 2, 0, -1, {}}, 110) == 5);
}

void infinity_is_named() {
  Predictor predictor(3, 1, numbers(3), {identity_encoding(3)}, regression(1));
  const std::vector<float> w{1, 1, 1}, leaves{0, 1};
  const float offset = 0;
  predictor.add_member(&offset);
  predictor.add_trees(0, {w.data(), nullptr, leaves.data(), 1, 3, 1, 1, Activation::smooth_step, 1}, 0x3p10);
  std::vector<double> x(600, 0), output(200);
  x[400] = -std::numeric_limits<double>::infinity();
  CHECK(predictor.predict<double>({x.data(), 200, 3}, false, output.data(), 2) == 1);
  x[400] = std::numeric_limits<double>::max();
  CHECK(predictor.predict<double>({x.data(), 200, 3}, false, output.data(), 2) == -1);
}

}  // namespace

int main() {
  for (const Activation activation : {Activation::smooth_step, Activation::smoother_step, Activation::logistic}) {
    same_as_forward({1, 1, 1, 1, 1.0F}, activation);
    same_as_forward({3, 7, 2, 5, 0.3F}, activation);
    same_as_forward({5, 8, 1, 6, 4.0F}, activation);
    same_as_forward({2, 19, 3, 9, 0.1F}, activation);
    same_as_forward({2100, 2, 1, 2, 1.0F}, activation);
  }
  columns_are_read();
  infinity_is_named();
  return softwood::testing::report();
}

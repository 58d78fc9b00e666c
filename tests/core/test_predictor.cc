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
  Predictor predictor(p, k, numbers(p), {identity_encoding(p)}, {}, regression(k));
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
  Predictor predictor(static_cast<std::int64_t>(row.size()), 1, columns, {identity_encoding(q)}, {}, regression(1));
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
  Predictor predictor(3, 1, numbers(3), {identity_encoding(3)}, {}, regression(1));
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

// Random tables for two numbers (one of them missing at times) and a category with codes 0 to 2.
struct LookupCase {
  static constexpr std::int64_t m = 3, q = 5, k = 2;
  int depth;
  std::vector<LookupInput> inputs{{0, {-1, 0, 0.5F}, 0}, {1, {-2, 2}, 0}, {2, {}, 3}, {3, {0, 1}, 0}, {4, {-3, 4}, 0}};
  std::vector<std::int64_t> table_begin{0};
  std::vector<std::int32_t> table_column;
  std::vector<std::int16_t> values;
  std::vector<float> split_bias, leaf_weight;

  explicit LookupCase(int depth) : depth(depth) {
    std::mt19937 generator(3);
    std::normal_distribution<float> normal;
    for (std::int64_t split = 0; split < m * n_splits(); ++split) {
      for (std::int32_t column = 0; column < q; ++column) {
        if (generator() % 3 == 0) continue;
        table_column.push_back(column);
        for (std::int64_t e = 0; e < inputs[column].n_entries(); ++e) {
          // Some tables are too wide for bytes.
          const float spread = split % 5 == 0 && column == 1 ? 300 : 40;
          values.push_back(static_cast<std::int16_t>(spread * normal(generator)));
        }
      }
      table_begin.push_back(static_cast<std::int64_t>(table_column.size()));
      split_bias.push_back(0.2F * normal(generator));
    }
    for (std::int64_t i = 0; i < m * (n_splits() + 1) * k; ++i) leaf_weight.push_back(normal(generator));
  }

  std::int64_t n_splits() const { return (std::int64_t{1} << depth) - 1; }
  LookupEnsemble ensemble() const {
    return {.n_trees = m,
            .n_outputs = k,
            .depth = depth,
            .table_begin = table_begin.data(),
            .table_column = table_column.data(),
            .values = values.data(),
            .split_bias = split_bias.data(),
            .leaf_weight = leaf_weight.data(),
            .activation = Activation::smooth_step,
            .gamma = 1,
            .step = 1.0F / 128,
            .leaf_scale = float(1 << 24)};
  }

  // Entry and fraction of a value, by definition.
  std::pair<std::int64_t, double> cell(std::int64_t column, float x) const {
    const LookupInput& input = inputs[column];
    const auto n = static_cast<std::int64_t>(input.knots.size());
    if (n == 0) return {x >= 0 && x < 3 ? std::int64_t(x) : 3, 0};
    if (std::isnan(x)) return {n, 0};
    if (x <= input.knots[0]) return {0, 0};
    for (std::int64_t e = 0; e + 1 < n; ++e) {
      const double low = input.knots[e], high = input.knots[e + 1];
      if (x < high) return {e, (x - low) / (high - low)};
    }
    return {n - 1, 0};
  }

  double score(const float* row, std::int64_t output) const {
    std::vector<std::int64_t> first_value{0};
    for (std::int32_t column : table_column) first_value.push_back(first_value.back() + inputs[column].n_entries());
    double total = 0;
    for (std::int64_t tree = 0; tree < m; ++tree) {
      std::vector<double> reach(2 * n_splits() + 1, 0.0);
      reach[0] = 1;
      for (std::int64_t node = 0; node < n_splits(); ++node) {
        const std::int64_t split = tree * n_splits() + node;
        double t = split_bias[split];
        for (std::int64_t i = table_begin[split]; i < table_begin[split + 1]; ++i) {
          const auto [entry, fraction] = cell(table_column[i], row[table_column[i]]);
          const std::int16_t* const v = values.data() + first_value[i] + entry;
          t += (fraction == 0 ? v[0] : (1 - fraction) * v[0] + fraction * v[1]) / 128.0;
        }
        const double left = t <= -0.5 ? 0 : t >= 0.5 ? 1 : -2 * t * t * t + 1.5 * t + 0.5;
        reach[2 * node + 1] = reach[node] * left;
        reach[2 * node + 2] = reach[node] * (1 - left);
      }
      for (std::int64_t leaf = 0; leaf <= n_splits(); ++leaf) {
        total += reach[n_splits() + leaf] * leaf_weight[(tree * (n_splits() + 1) + leaf) * k + output];
      }
    }
    return total;
  }
};

void check_lookups(int depth, bool has_usual) {
  const LookupCase given(depth);
  constexpr std::int64_t n = 1300, q = LookupCase::q, k = LookupCase::k;
  Predictor predictor(q, k, numbers(q), {}, given.inputs, regression(k));
  const std::vector<float> offset(k, 0.25F);
  predictor.add_member(offset.data());
  predictor.add_lookups(given.ensemble());
  std::mt19937 generator(5);
  std::normal_distribution<float> normal;
  std::vector<float> x;
  for (std::int64_t i = 0; i < n; ++i) {
    x.push_back(i % 7 == 0 ? kNaN : i % 11 == 0 ? 0.5F : normal(generator));
    x.push_back(i % 13 == 0 ? 3e38F : 2 * normal(generator));
    x.push_back(static_cast<float>(int(generator() % 5) - 1));
    for (std::int64_t c = 3; c < q; ++c) x.push_back(normal(generator));
    if (has_usual) {  // most rows have the same cells, and slices have few or no others
      for (std::int64_t c = 0; c < q; ++c) x[i * q + c] = i % (37 * (c + 1)) == 0 ? x[i * q + c] : float(c);
    }
  }
  std::vector<double> bulk(n * k), threads(n * k), alone(k);
  CHECK(predictor.predict(Rows<float>{x.data(), n, q}, true, bulk.data(), 1) == -1);
  predictor.predict(Rows<float>{x.data(), n, q}, true, threads.data(), 3);
  CHECK(bulk == threads);
  for (std::int64_t i = 0; i < n; ++i) {
    predictor.predict(Rows<float>{x.data() + i * q, 1, q}, true, alone.data(), 1);
    for (std::int64_t o = 0; o < k; ++o) {
      CHECK(alone[o] == bulk[i * k + o]);
      CHECK(std::abs(alone[o] - 0.25 - given.score(x.data() + i * q, o)) < 2e-3);  // fractions are rounded
    }
  }
}

}  // namespace

int main() {
  for (int depth : {1, 2, 4, 5, 9}) {
    check_lookups(depth, false);
    check_lookups(depth, true);
  }
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

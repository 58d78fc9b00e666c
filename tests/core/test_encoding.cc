// encoding.h: features of each kind by hand; missing values, values beyond all bounds, infinities.
#include <cmath>
#include <limits>
#include <vector>

#include "check.h"
#include "softwood/encoding.h"

using namespace softwood;

namespace {

template <typename T>
bool near(T a, double b) {
  return std::abs(double(a) - b) <= 1e-6 * (1 + std::abs(b));
}

// Two features of each kind, from three base columns.
struct Features {
  std::vector<std::int32_t> source = {0, 2, 0, 1, 1, 2, 0, 2, 1, 2};
  std::vector<float> start = {0, 0, 1, 0, 1, -1, 2, 3, 0, 0}, rate = {1, 1, 2, 0.5F, 0.5F, 1, 1, 1, 1, 1};
  std::vector<float> mean = {1, 0, 0.5F, 0, 0.25F, 0, 0.1F, 0, 0.2F, 0}, scale = {2, 1, 1, 3, 4, 1, 1, 2, 1, 5};
  std::vector<float> bound = std::vector<float>(10, 0.75F);

  Encoding encoding(bool bounded = false) const {
    return {source, start, rate, mean, scale, bounded ? bound : std::vector<float>(), {0, 2, 4, 6, 8, 10}};
  }
};

double soft_clip(double z) { return z / std::sqrt(1 + z * z / 9); }

template <typename T>
void each_kind_is_what_it_says() {
  const T missing = std::numeric_limits<T>::quiet_NaN();
  const Features features;
  T found[10];
  const T row[] = {2, 3, missing};
  encode_row(features.encoding(), row, found);
  CHECK(near(found[0], (2 - 1) * 2.0));
  CHECK(found[1] == 0);  // missing: the mean
  CHECK(near(found[2], soft_clip((2 - 1) * 2.0) - 0.5));
  CHECK(near(found[3], soft_clip(3 * 0.5) * 3));
  CHECK(near(found[4], (1 - 0.25) * 4));  // beyond the end of the ramp: 1
  CHECK(found[5] == 0);
  CHECK(near(found[6], 1 - 0.1) && found[7] == 0);
  CHECK(near(found[8], 0 - 0.2) && near(found[9], 5));  // whether missing

  T bounded[10];
  encode_row(features.encoding(true), row, bounded);
  CHECK(near(bounded[0], 0.75) && near(bounded[3], 0.75) && near(bounded[6], 0.75));
  CHECK(near(bounded[8], -0.2) && bounded[1] == 0);

  const T huge[] = {std::numeric_limits<T>::max(), std::numeric_limits<T>::lowest(), 3};
  encode_row(features.encoding(), huge, found);
  for (const T feature : found) CHECK(std::isfinite(feature));
  CHECK(near(found[4], (0 - 0.25) * 4) && near(found[7], (1 - 0) * 2));
}

// Columns in the order of the features give the same as any others; many rows give the same as one by one.
template <typename T>
void rows_and_orders_agree() {
  const std::int64_t n = 700, p = 10;
  Features features;
  for (std::int32_t f = 0; f < p; ++f) features.source[std::size_t(f)] = f;
  std::vector<T> base(std::size_t(n * p));
  for (std::size_t i = 0; i < base.size(); ++i) base[i] = T(i % 13) - 6;
  Encoding encoding = features.encoding();
  std::vector<T> plain(base.size()), in_order(base.size()), one(p);
  encode(encoding, Rows<T>{base.data(), n, p}, plain.data(), 1);
  encoding.in_order = true;
  encode(encoding, Rows<T>{base.data(), n, p}, in_order.data(), 3);
  CHECK(plain == in_order);
  encode_row(encoding, base.data() + 5 * p, one.data());
  for (std::int64_t f = 0; f < p; ++f) CHECK(one[std::size_t(f)] == plain[std::size_t(5 * p + f)]);
}

template <typename T>
void infinities_are_found_and_missing_values_are_none() {
  std::vector<T> row(37, std::numeric_limits<T>::quiet_NaN());
  row[3] = std::numeric_limits<T>::max();
  CHECK(first_infinity(row.data(), 37) == -1);
  CHECK(first_infinity(row.data(), 0) == -1);
  for (std::int64_t j = 36; j >= 0; --j) {
    row[std::size_t(j)] = j % 2 ? std::numeric_limits<T>::infinity() : -std::numeric_limits<T>::infinity();
    CHECK(first_infinity(row.data(), 37) == j);
  }
}

template <typename T>
void all() {
  each_kind_is_what_it_says<T>();
  rows_and_orders_agree<T>();
  infinities_are_found_and_missing_values_are_none<T>();
}

}  // namespace

int main() {
  all<float>();
  all<double>();
  return softwood::testing::report();
}

// training_kernels.h: the loops against plain ones, on ranges of every length around the width of a vector.
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "check.h"
#include "training_kernels.h"

using namespace softwood;

namespace {

template <typename T>
bool near(T a, T b) {
  return std::abs(a - b) <= std::numeric_limits<T>::epsilon() * 16 * (1 + std::abs(b));
}

template <typename T>
std::vector<T> random_values(std::int64_t n, std::mt19937& random, T low, T high) {
  std::uniform_real_distribution<T> uniform(low, high);
  std::vector<T> values(n);
  for (T& v : values) v = uniform(random);
  return values;
}

template <typename T>
struct Held {
  std::vector<T> value, gradient, first, second, average;
  Held(std::int64_t n, std::mt19937& random)
      : value(random_values<T>(n, random, -1, 1)),
        gradient(random_values<T>(n, random, -1, 1)),
        first(random_values<T>(n, random, -1, 1)),
        second(random_values<T>(n, random, 0, 1)),
        average(random_values<T>(n, random, -1, 1)) {}
  Elements<T> elements() { return {value.data(), gradient.data(), first.data(), second.data(), average.data()}; }
};

template <typename T>
AdamStep<T> some_step() {
  return {T(0.01), T(0.1), T(0.99), T(0.01), T(1.5), T(1e-3), T(0.2), T(0.9), T(0.02), T(0.7)};
}

// Adam for one element, by its definition.
template <typename T>
void update_plainly(const AdamStep<T>& s, Held<T>& h, std::int64_t i) {
  const T g = h.gradient[i] + s.l2 * h.value[i];
  h.first[i] = (1 - s.one_minus_beta1) * h.first[i] + s.one_minus_beta1 * g;
  h.second[i] = s.beta2 * h.second[i] + s.one_minus_beta2 * g * g;
  T w = h.value[i] * s.keep - s.step_size * h.first[i] / (std::sqrt(h.second[i]) * s.inverse_sqrt_bias + s.epsilon);
  w = w > s.threshold ? w - s.threshold : w < -s.threshold ? w + s.threshold : T(0);
  h.value[i] = w;
  h.gradient[i] = 0;
  h.average[i] = s.average_decay * h.average[i] + (1 - s.average_decay) * w;
}

template <typename T>
bool same(const Held<T>& a, const Held<T>& b) {
  for (std::size_t i = 0; i < a.value.size(); ++i) {
    if (!near(a.value[i], b.value[i]) || a.gradient[i] != b.gradient[i] || !near(a.first[i], b.first[i]) ||
        !near(a.second[i], b.second[i]) || !near(a.average[i], b.average[i])) {
      return false;
    }
  }
  return true;
}

template <typename T>
void check_update() {
  std::mt19937 random(0);
  for (std::int64_t n = 1; n < 70; ++n) {
    Held<T> held(n + 1, random), expected = held;  // one more element, which must not change
    training_kernels<T>().update(some_step<T>(), held.elements(), n);
    for (std::int64_t i = 0; i < n; ++i) update_plainly(some_step<T>(), expected, i);
    CHECK(same(held, expected));
  }
}

template <typename T>
void check_frozen() {
  std::mt19937 random(0);
  Held<T> held(20, random);
  AdamStep<T> step_without_l1 = some_step<T>();
  step_without_l1.threshold = 0;
  for (std::int64_t i = 0; i < 20; i += 2) {
    held.second[i] = std::numeric_limits<T>::infinity();
    held.value[i] = 0;
  }
  for (int step = 0; step < 3; ++step) {
    held.gradient.assign(20, T(1));
    training_kernels<T>().update(step_without_l1, held.elements(), 20);
  }
  for (std::int64_t i = 0; i < 20; ++i) CHECK((held.value[i] == 0) == (i % 2 == 0));
}

// A tree of depth 6 with every third mark set, updated lazily, densely and by the automatic rule.
template <typename T>
void check_tree(Updates updates, bool expect_dense, std::int64_t p, std::int64_t k, int one_in) {
  std::mt19937 random(p);
  const std::int64_t n_splits = 63, n_leaves = 64;
  Held<T> w(n_splits * p, random), b(n_splits, random), o(n_leaves * k, random);
  std::vector<std::uint8_t> split_marked(n_splits), leaf_marked(n_leaves);
  for (std::int64_t i = 0; i < n_splits; ++i) split_marked[i] = random() % one_in == 0;
  for (std::int64_t i = 0; i < n_leaves; ++i) leaf_marked[i] = random() % one_in == 0;
  const auto clear_unmarked = [](Held<T>& h, const std::vector<std::uint8_t>& marked, std::int64_t columns) {
    for (std::size_t i = 0; i < h.gradient.size(); ++i) h.gradient[i] *= marked[i / columns];
  };
  clear_unmarked(w, split_marked, p);
  clear_unmarked(b, split_marked, 1);
  clear_unmarked(o, leaf_marked, k);
  Held<T> w_expected = w, b_expected = b, o_expected = o;
  std::vector<T> bias_sum(p), gradient_sum(p), bias_sum_expected(p), gradient_sum_expected(p);
  std::vector<std::int64_t> split_step(n_splits, 4), leaf_step(n_leaves, 4);
  const AdamStep<T> step = some_step<T>();
  for (std::int64_t i = 0; i < n_splits; ++i) {
    for (std::int64_t f = 0; f < p; ++f) {
      bias_sum_expected[f] += w.value[i * p + f] * b.gradient[i];
      gradient_sum_expected[f] += w.value[i * p + f] * w.gradient[i * p + f];
    }
    if (!expect_dense && !split_marked[i]) continue;
    for (std::int64_t f = 0; f < p; ++f) update_plainly(step, w_expected, i * p + f);
    update_plainly(step, b_expected, i);
  }
  for (std::int64_t i = 0; i < n_leaves * k; ++i) {
    if (expect_dense || leaf_marked[i / k]) update_plainly(step, o_expected, i);
  }
  training_kernels<T>().update_tree({n_splits, p, k, updates, 5, step, step, step, w.elements(), b.elements(),
                                     o.elements(), split_marked.data(), leaf_marked.data(), split_step.data(),
                                     leaf_step.data(), bias_sum.data(), gradient_sum.data()});
  CHECK(same(w, w_expected));
  CHECK(same(b, b_expected));
  CHECK(same(o, o_expected));
  for (std::int64_t f = 0; f < p; ++f) {
    CHECK(near(bias_sum[f], bias_sum_expected[f]));
    CHECK(near(gradient_sum[f], gradient_sum_expected[f]));
  }
  for (const std::uint8_t mark : split_marked) CHECK(mark == 0);
  for (const std::uint8_t mark : leaf_marked) CHECK(mark == 0);
}

// Rows without updates for some steps must have the same averages as with an update in every step.
template <typename T>
void check_average() {
  const double decay = 0.8;
  std::vector<T> value = {2, 3}, average = {1, 1}, evaluated(2);
  const std::vector<std::int64_t> row_step = {4, 7};
  const Parameter<T> parameter{value.data(), nullptr, nullptr, average.data(), evaluated.data()};
  training_kernels<T>().read_average(parameter, 2, 1, row_step.data(), 7, decay);
  double behind = 1;
  for (int step = 4; step < 7; ++step) behind = decay * behind + (1 - decay) * 2;
  const double total = 1 - std::pow(decay, 7);
  CHECK(near(evaluated[0], T(behind / total)));
  CHECK(near(evaluated[1], T(1 / total)));
}

template <typename T>
void check_columns() {
  std::mt19937 random(0);
  for (const std::int64_t n : {1, 2, 129, 700}) {
    for (const std::int64_t p : {1, 3, 8, 21}) {
      const std::vector<T> x = random_values<T>(n * p, random, 999, 1001);
      std::vector<T> mean(p), variance(p), factor(p, 2), shift(p, 3), out(n * p);
      training_kernels<T>().column_moments(x.data(), n, p, mean.data(), variance.data());
      training_kernels<T>().normalise(x.data(), n, p, mean.data(), factor.data(), shift.data(), out.data());
      for (std::int64_t f = 0; f < p; ++f) {
        double centre = 0, spread = 0;
        for (std::int64_t i = 0; i < n; ++i) centre += double(x[i * p + f]) / double(n);
        for (std::int64_t i = 0; i < n; ++i) spread += std::pow(double(x[i * p + f]) - centre, 2) / double(n);
        CHECK(near(mean[f], T(centre)));
        CHECK(std::abs(double(variance[f]) - spread) < 1e-5);
        CHECK(near(out[f], (x[f] - mean[f]) * 2 + 3));
      }
    }
  }
}

template <typename T>
void check_all() {
  check_update<T>();
  check_frozen<T>();
  for (const std::int64_t p : {1, 7, 32, 33}) {
    for (const std::int64_t k : {1, 3}) {
      check_tree<T>(Updates::lazy, false, p, k, 3);
      check_tree<T>(Updates::dense, true, p, k, 3);
      check_tree<T>(Updates::automatic, false, p, k, 4);
      check_tree<T>(Updates::automatic, true, p, k, 1);
    }
  }
  check_average<T>();
  check_columns<T>();
}

}  // namespace

int main() {
  check_all<float>();
  check_all<double>();
  return softwood::testing::report();
}

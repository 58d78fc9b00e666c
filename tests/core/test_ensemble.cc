// ensemble.h: both passes and the counts against the paper's algorithm taken literally, the contract on gradients and
// marks, tapes and their keys, strided rows, and bit-identical results for every number of threads.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "../../benchmarks/literal.h"
#include "check.h"
#include "softwood/ensemble.h"
#include "softwood/marked_rows.h"

using namespace softwood;

namespace {

template <typename T>
using Values = std::vector<T>;

template <typename T>
struct Problem {
  std::int64_t n, p, k, m;
  int d;
  Activation activation;
  T gamma;
  Values<T> x, split_weight, split_bias, leaf_weight, grad_output;

  // `spread` is the standard deviation of t in units of gamma.
  Problem(std::int64_t n, std::int64_t p, std::int64_t k, std::int64_t m, int d, Activation activation, T gamma,
          T spread)
      : n(n), p(p), k(k), m(m), d(d), activation(activation), gamma(gamma) {
    std::mt19937 random(static_cast<unsigned>(n + 31 * p + 1009 * d));
    std::normal_distribution<T> normal;
    const auto fill = [&](Values<T>& values, std::int64_t size, T scale) {
      values.resize(static_cast<std::size_t>(size));
      for (T& value : values) value = scale * normal(random);
    };
    fill(x, n * p, 1);
    fill(split_weight, m * splits() * p, spread * gamma / std::sqrt(static_cast<T>(p)));
    fill(split_bias, m * splits(), gamma / 2);
    fill(leaf_weight, m * leaves() * k, 1);
    fill(grad_output, n * m * k, 1);
  }
  std::int64_t splits() const { return (std::int64_t{1} << d) - 1; }
  std::int64_t leaves() const { return std::int64_t{1} << d; }
  Ensemble<T> ensemble() const {
    return {split_weight.data(), split_bias.data(), leaf_weight.data(), m, p, k, d, activation, gamma};
  }
  Rows<T> rows() const { return {x.data(), n, p}; }
  literal::Trees<T> trees() const {
    return {
        split_weight.data(), split_bias.data(), leaf_weight.data(), m, p, k, d, static_cast<int>(activation), gamma};
  }
};

template <typename T>
struct Results {
  Values<T> output, x, split_weight, split_bias, leaf_weight;
  std::vector<std::uint8_t> split_marked, leaf_marked;

  Results(const Problem<T>& q, bool sum_trees) {
    const auto size = [](std::int64_t count) { return static_cast<std::size_t>(count); };
    output.resize(size(q.n * q.k * (sum_trees ? 1 : q.m)));
    x.resize(size(q.n * q.p));
    split_weight.resize(size(q.m * q.splits() * q.p));
    split_bias.resize(size(q.m * q.splits()));
    leaf_weight.resize(size(q.m * q.leaves() * q.k));
    split_marked.resize(split_bias.size());
    leaf_marked.resize(size(q.m * q.leaves()));
  }
  Gradients<T> gradients() {
    return {x.data(),           split_weight.data(), split_bias.data(),
            leaf_weight.data(), split_marked.data(), leaf_marked.data()};
  }
  bool operator==(const Results&) const = default;
};

template <typename T>
Results<T> run(const Problem<T>& q, bool sum_trees, int n_threads, bool with_tape) {
  Results<T> results(q, sum_trees);
  Tape<T> tape;
  forward(q.ensemble(), q.rows(), sum_trees, results.output.data(), with_tape ? &tape : nullptr, n_threads);
  Tape<T> moved = std::move(tape);  // a tape may change its owner
  backward(q.ensemble(), q.rows(), sum_trees, q.grad_output.data(), with_tape ? &moved : nullptr, results.gradients(),
           n_threads);
  return results;
}

// Distance in units of the larger norm.
template <typename T>
double difference(const Values<T>& a, const Values<T>& b) {
  double distance = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    distance += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return a.size() != b.size() ? 1 : norm == 0 ? std::sqrt(distance) : std::sqrt(distance / norm);
}

template <typename T>
void equals_the_literal_algorithm(const Problem<T>& q) {
  Results<T> want(q, true);
  literal::Visits<T> visits;
  literal::forward(q.trees(), q.x.data(), q.n, want.output.data(), &visits);
  literal::backward(q.trees(), q.x.data(), q.n, q.grad_output.data(), visits, want.x.data(), want.split_weight.data(),
                    want.split_bias.data(), want.leaf_weight.data());
  const double tolerance = sizeof(T) == 4 ? 2e-4 : 1e-10;
  for (bool with_tape : {true, false}) {
    const Results<T> got = run(q, true, 1, with_tape);
    CHECK(difference(got.output, want.output) < tolerance);
    CHECK(difference(got.x, want.x) < tolerance);
    CHECK(difference(got.split_weight, want.split_weight) < tolerance);
    CHECK(difference(got.split_bias, want.split_bias) < tolerance);
    CHECK(difference(got.leaf_weight, want.leaf_weight) < tolerance);
    for (std::size_t i = 0; i < got.split_bias.size(); ++i) CHECK(got.split_marked[i] != 0 || got.split_bias[i] == 0);
  }
  std::vector<std::int32_t> counts(static_cast<std::size_t>(3 * q.n * q.m));
  std::int32_t* const leaves = counts.data();
  std::int32_t* const internal = leaves + q.n * q.m;
  std::int32_t* const fractional = internal + q.n * q.m;
  Ensemble<T> routing = q.ensemble();
  routing.leaf_weight = nullptr;
  reachability(routing, q.rows(), leaves, internal, fractional, 2);
  std::int64_t n_internal = 0, n_leaves = 0;
  for (std::int64_t i = 0; i < q.n * q.m; ++i) {
    CHECK(fractional[i] == leaves[i] - 1);
    n_internal += internal[i];
    n_leaves += leaves[i];
  }
  // In float32 a split value may be on the other side of an edge, because sums have another order, and a tiny
  // probability may become 0.
  const std::int64_t slack = sizeof(T) == 4 ? 2 + n_internal / 1000 : 0;
  const std::int64_t n_fractional = static_cast<std::int64_t>(visits.all.size()) - n_leaves;
  CHECK(std::abs(n_internal - visits.n_splits_visited) <= slack * q.d);
  CHECK(std::abs(n_leaves - q.n * q.m - n_fractional) <= 2 * slack);
}

template <typename T>
void threads_change_no_bit(const Problem<T>& q) {
  for (bool sum_trees : {true, false}) {
    const Results<T> want = run(q, sum_trees, 1, true);
    for (int n_threads : {2, 3, 7}) {
      CHECK(run(q, sum_trees, n_threads, true) == want);
      CHECK(run(q, sum_trees, n_threads, false) == want);
    }
  }
}

template <typename T>
void rows_may_lie_apart(const Problem<T>& q) {
  const std::int64_t stride = q.p + 5;
  Values<T> wide(static_cast<std::size_t>(q.n * stride), T(1e30));
  for (std::int64_t i = 0; i < q.n; ++i) std::copy_n(q.x.data() + i * q.p, q.p, wide.data() + i * stride);
  Results<T> want(q, true), got(q, true);
  forward(q.ensemble(), q.rows(), true, want.output.data(), static_cast<Tape<T>*>(nullptr), 1);
  forward(q.ensemble(), Rows<T>{wide.data(), q.n, stride}, true, got.output.data(), static_cast<Tape<T>*>(nullptr), 1);
  CHECK(got.output == want.output);
}

template <typename T>
void gradients_not_asked_for_are_skipped(const Problem<T>& q) {
  const Results<T> want = run(q, true, 1, true);
  for (int chosen = 0; chosen < 16; ++chosen) {
    Results<T> got(q, true);
    Gradients<T> some = got.gradients();
    if (!(chosen & 1)) some.x = nullptr;
    if (!(chosen & 2)) some.split_weight = nullptr;
    if (!(chosen & 4)) some.split_bias = nullptr;
    if (!(chosen & 8)) some.leaf_weight = nullptr, some.leaf_marked = nullptr;
    if (!(chosen & 6)) some.split_marked = nullptr;
    backward(q.ensemble(), q.rows(), true, q.grad_output.data(), static_cast<Tape<T>*>(nullptr), some, 1);
    CHECK(!(chosen & 1) || got.x == want.x);
    CHECK(!(chosen & 2) || got.split_weight == want.split_weight);
    CHECK(!(chosen & 4) || got.split_bias == want.split_bias);
    CHECK(!(chosen & 8) || (got.leaf_weight == want.leaf_weight && got.leaf_marked == want.leaf_marked));
    CHECK(!(chosen & 6) || got.split_marked == want.split_marked);
  }
}

template <typename T>
void cleared_rows_are_as_new(const Problem<T>& q) {
  Results<T> used = run(q, true, 1, true);
  const auto n_splits = static_cast<std::int64_t>(used.split_marked.size());
  const auto n_leaves = static_cast<std::int64_t>(used.leaf_marked.size());
  clear_rows(used.split_marked.data(), n_splits, used.split_weight.data(), q.p, used.split_bias.data(), 1);
  clear_rows(used.leaf_marked.data(), n_leaves, used.leaf_weight.data(), q.k, static_cast<T*>(nullptr), 0);
  Results<T> fresh(q, true);
  CHECK(used.split_weight == fresh.split_weight);
  CHECK(used.split_bias == fresh.split_bias);
  CHECK(used.leaf_weight == fresh.leaf_weight);
  CHECK(used.split_marked == fresh.split_marked);
  CHECK(used.leaf_marked == fresh.leaf_marked);
}

// A tape knows the call that filled it; an empty one belongs to none.
template <typename T>
void tapes_know_their_call(const Problem<T>& q) {
  Results<T> results(q, true);
  Tape<T> tape;
  CHECK(tape.key() == nullptr && tape.n_bytes() == 0);
  forward(q.ensemble(), q.rows(), true, results.output.data(), &tape, 1);
  const TapeKey<T> key = TapeKey<T>::of(q.ensemble(), q.n, true);
  CHECK(tape.key() != nullptr && *tape.key() == key && tape.n_bytes() > 0);
  Ensemble<T> deeper = q.ensemble(), softer = q.ensemble();
  ++deeper.depth;
  softer.gamma *= 2;
  CHECK(TapeKey<T>::of(deeper, q.n, true) != key && TapeKey<T>::of(softer, q.n, true) != key);
  CHECK(TapeKey<T>::of(q.ensemble(), q.n + 1, true) != key && TapeKey<T>::of(q.ensemble(), q.n, false) != key);
}

template <typename T>
void all() {
  for (Activation activation : {Activation::smooth_step, Activation::smoother_step, Activation::logistic}) {
    for (T spread : {T(0.1), T(1), T(4)}) {
      equals_the_literal_algorithm(Problem<T>(70, 9, 3, 4, 5, activation, T(0.7), spread));
      equals_the_literal_algorithm(Problem<T>(3, 33, 1, 2, 3, activation, T(2), spread));
      equals_the_literal_algorithm(Problem<T>(300, 1, 6, 1, 4, activation, T(1), spread));
      equals_the_literal_algorithm(Problem<T>(17, 16, 2, 12, 8, activation, T(0.1), spread));
      equals_the_literal_algorithm(Problem<T>(1, 5, 2, 3, 1, activation, T(1), spread));
    }
    threads_change_no_bit(Problem<T>(530, 7, 3, 9, 5, activation, T(1), T(4)));
  }
  threads_change_no_bit(Problem<T>(600, 20, 2, 1, 6, Activation::smooth_step, T(1), T(2)));
  for (std::int64_t k : {3, 5}) {  // almost all is reached: several levels at once without a tape, one by one with it
    Problem<T> soft(270, 6, k, 6, 9, Activation::smooth_step, T(1), T(0.2));
    for (T& bias : soft.split_bias) bias /= 4;
    equals_the_literal_algorithm(soft);
    threads_change_no_bit(soft);
  }
  const Problem<T> typical(90, 12, 3, 5, 6, Activation::smooth_step, T(1), T(3));
  rows_may_lie_apart(typical);
  gradients_not_asked_for_are_skipped(typical);
  cleared_rows_are_as_new(typical);
  tapes_know_their_call(typical);
  run(Problem<T>(0, 3, 2, 4, 3, Activation::smooth_step, T(1), T(1)), true, 2, true);
  run(Problem<T>(0, 3, 2, 4, 3, Activation::smooth_step, T(1), T(1)), false, 2, false);
}

}  // namespace

int main() {
  std::printf("instruction set: %s\n", instruction_set());
  CHECK(std::strlen(instruction_set()) > 0);
  all<float>();
  all<double>();
  return softwood::testing::report();
}

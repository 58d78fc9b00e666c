// optimizer.h: Adam's first steps by hand, dense and lazy; gradients are zero afterwards. Whole runs are compared with
// PyTorch in the Python tests.
#include "optimizer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "check.h"

using namespace softwood;

namespace {

constexpr double kRate = 0.1, kBeta1 = 0.9, kBeta2 = 0.99, kEpsilon = 1e-8;

template <typename T>
bool near(T a, double b) {
  return std::abs(double(a) - b) <= 1e-5 * (1 + std::abs(b));
}

// Two trees of depth 1 with two features and one output.
template <typename T>
struct Problem {
  std::vector<T> arrays[3][3];  // value, moments of: split weights [2, 1, 2], biases [2, 1], leaves [2, 2, 1]
  MemberSettings<T> settings;

  explicit Problem(Updates updates) {
    const std::size_t sizes[] = {4, 2, 4};
    for (int i = 0; i < 3; ++i) {
      for (std::vector<T>& array : arrays[i]) array.assign(sizes[i], T(0));
      arrays[i][0].assign(sizes[i], T(1));
    }
    settings = {.n_trees = 2,
                .n_features = 2,
                .depth = 1,
                .activation = Activation::smooth_step,
                .normalisation = Normalisation::none,
                .normalisation_epsilon = 0,
                .batch_size = 1,
                .seed = 0,
                .schedule = {},
                .adam = {updates, kBeta1, kBeta2, kEpsilon, 0, 0, 0, 0},
                .loss = {LossKind::squared_error, 1, 1}};
  }

  Parameters<T> parameters() {
    const auto parameter = [&](int i) {
      return Parameter<T>{arrays[i][0].data(), arrays[i][1].data(), arrays[i][2].data(), nullptr, arrays[i][0].data()};
    };
    return {parameter(0), parameter(1), parameter(2), {}, {}, nullptr, nullptr, nullptr, nullptr, nullptr};
  }
};

// Adds a gradient to the first tree's split and to its first leaf.
template <typename T>
void add_gradient(Optimizer<T>& optimizer, T size) {
  const Gradients<T> to = optimizer.gradients();
  CHECK(to.x == nullptr && std::all_of(to.split_weight, to.split_weight + 4, [](T g) { return g == 0; }));
  CHECK(std::all_of(to.leaf_weight, to.leaf_weight + 4, [](T g) { return g == 0; }));
  to.split_weight[0] = size;
  to.leaf_weight[0] = 2 * size;
  to.split_marked[0] = to.leaf_marked[0] = 1;
}

template <typename T>
void steps_are_those_of_adam(Updates updates) {
  Problem<T> problem(updates);
  Optimizer<T> optimizer(problem.settings, problem.parameters());
  double first = 0, second = 0, value = 1;
  for (std::int64_t step = 1; step <= 3; ++step) {
    const double gradient = 0.5 * double(step);
    add_gradient(optimizer, T(gradient));
    optimizer.update(step, kRate, nullptr, 1);
    first = kBeta1 * first + (1 - kBeta1) * gradient;
    second = kBeta2 * second + (1 - kBeta2) * gradient * gradient;
    value -= kRate * (first / (1 - std::pow(kBeta1, double(step)))) /
             (std::sqrt(second / (1 - std::pow(kBeta2, double(step)))) + kEpsilon);
    CHECK(near(problem.arrays[0][0][0], value));
    CHECK(near(problem.arrays[2][0][0], value));  // the step does not depend on the size of a gradient
  }
  for (int i = 0; i < 3; ++i) {
    CHECK(std::all_of(problem.arrays[i][0].begin() + (i != 1), problem.arrays[i][0].end(), [](T v) { return v == 1; }));
  }
}

// Between two gradients of a row, its moments change with dense updates and not with lazy ones.
template <typename T>
void lazy_rows_stand_still() {
  for (const Updates updates : {Updates::dense, Updates::lazy}) {
    Problem<T> problem(updates);
    Optimizer<T> optimizer(problem.settings, problem.parameters());
    add_gradient(optimizer, T(1));
    optimizer.update(1, kRate, nullptr, 1);
    const T after_one = problem.arrays[0][0][0];
    optimizer.update(2, kRate, nullptr, 1);
    CHECK((problem.arrays[0][0][0] == after_one) == (updates == Updates::lazy));
  }
}

// An infinite second moment prevents a split from using a feature.
template <typename T>
void frozen_weights_stay() {
  Problem<T> problem(Updates::dense);
  problem.arrays[0][0][0] = 0;
  problem.arrays[0][2][0] = std::numeric_limits<T>::infinity();
  Optimizer<T> optimizer(problem.settings, problem.parameters());
  for (std::int64_t step = 1; step <= 3; ++step) {
    add_gradient(optimizer, T(1));
    optimizer.update(step, kRate, nullptr, 1);
    CHECK(problem.arrays[0][0][0] == 0);
  }
}

template <typename T>
void all() {
  steps_are_those_of_adam<T>(Updates::dense);
  steps_are_those_of_adam<T>(Updates::lazy);
  lazy_rows_stand_still<T>();
  frozen_weights_stay<T>();
}

}  // namespace

int main() {
  all<float>();
  all<double>();
  return softwood::testing::report();
}

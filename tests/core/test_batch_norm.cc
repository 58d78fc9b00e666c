// batch_norm.h: normalisation by the statistics of the batch and of the training set, and the gradient of the scale,
// computed by hand.
#include "batch_norm.h"

#include <cmath>
#include <vector>

#include "check.h"

using namespace softwood;

namespace {

template <typename T>
bool near(T a, double b) {
  return std::abs(double(a) - b) <= 1e-5 * (1 + std::abs(b));
}

template <typename T>
struct Problem {
  std::vector<T> scale = {2, 3}, shift = {1, -1}, mean = {10, 20}, variance = {4, 25};
  std::vector<T> x = {1, 5, /**/ 3, 5, /**/ 5, 11};  // batch: means 3 and 7, variances 8/3 and 8
  std::vector<T> out = std::vector<T>(6);

  Parameters<T> parameters() {
    Parameters<T> found{};
    found.scale.value = found.scale.evaluated = scale.data();
    found.shift.value = found.shift.evaluated = shift.data();
    found.mean = mean.data();
    found.variance = variance.data();
    return found;
  }
};

template <typename T>
void statistics_are_those_of_the_kind() {
  Problem<T> problem;
  const Parameters<T> parameters = problem.parameters();
  BatchNorm<T> none(Normalisation::none, 2, 0, parameters);
  CHECK(none.training(problem.x.data(), 3, problem.out.data()) == problem.x.data());

  BatchNorm<T> batch(Normalisation::batch, 2, 0, parameters);
  CHECK(batch.training(problem.x.data(), 3, problem.out.data()) == problem.out.data());
  CHECK(near(problem.out[0], (1 - 3) / std::sqrt(8.0 / 3) * 2 + 1));
  CHECK(near(problem.out[5], (11 - 7) / std::sqrt(8.0) * 3 - 1));
  batch.evaluation(problem.x.data(), 3, problem.out.data());
  CHECK(near(problem.out[0], (1 - 10) / 2.0 * 2 + 1));

  BatchNorm<T> fixed(Normalisation::training_set, 2, 0, parameters);
  fixed.training(problem.x.data(), 3, problem.out.data());
  CHECK(near(problem.out[5], (11 - 20) / 5.0 * 3 - 1));
}

template <typename T>
void the_scale_has_its_gradient() {
  Problem<T> problem;
  const Parameters<T> parameters = problem.parameters();
  BatchNorm<T> batch(Normalisation::batch, 2, 0, parameters);
  batch.training(problem.x.data(), 3, problem.out.data());
  const std::vector<T> of_inputs = {1, 0, /**/ 0, 0, /**/ 2, 1};
  const T* const gradient = batch.scale_gradient(problem.x.data(), 3, of_inputs.data());
  CHECK(near(gradient[0], (1 * -2 + 2 * 2) / std::sqrt(8.0 / 3)));
  CHECK(near(gradient[1], 4 / std::sqrt(8.0)));
  CHECK(!batch.needs_input_gradient());
  problem.scale[1] = T(0.001);
  CHECK(batch.needs_input_gradient());
}

}  // namespace

int main() {
  statistics_are_those_of_the_kind<float>();
  statistics_are_those_of_the_kind<double>();
  the_scale_has_its_gradient<float>();
  the_scale_has_its_gradient<double>();
  return softwood::testing::report();
}

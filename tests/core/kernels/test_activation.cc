// activation.h: routing against long double, exactness at the edges, and the backward step.
#include "run.h"  // first

#include "activation.h"

using namespace softwood::SOFTWOOD_ISA;
using softwood::Activation;
using softwood::Ensemble;

// Probability of going left and its slope, by the definitions.
struct Exact {
  long double left, right, slope;
};

static Exact exact(Activation activation, long double t, long double gamma) {
  if (activation == Activation::logistic) {
    const long double left = 1 / (1 + std::exp(-t / gamma)), right = 1 / (1 + std::exp(t / gamma));
    return {left, right, left * right / gamma};
  }
  if (t <= -gamma / 2) return {0, 1, 0};
  if (t >= gamma / 2) return {1, 0, 0};
  const long double v = (t + gamma / 2) / gamma, u = (gamma / 2 - t) / gamma;
  if (activation == Activation::smooth_step) return {v * v * (3 - 2 * v), u * u * (3 - 2 * u), 6 * u * v / gamma};
  const auto quintic = [](long double s) { return s * s * s * (10 - 15 * s + 6 * s * s); };
  return {quintic(v), quintic(u), 30 * u * u * v * v / gamma};
}

template <typename T, typename Body>
static void with(Activation activation, T gamma, const Body& body) {
  Ensemble<T> ensemble{};
  ensemble.activation = activation;
  ensemble.gamma = gamma;
  with_activation(ensemble, body);
}

template <typename T>
static bool close(T got, long double want, long double scale) {
  const long double epsilon = 16 * std::numeric_limits<T>::epsilon();
  return std::abs(got - want) <= epsilon * (std::abs(want) + scale) + std::numeric_limits<T>::min();
}

template <typename T>
static void follows_the_definition(Activation activation, T gamma) {
  with(activation, gamma, [&](auto routing) {
    for (int i = -400; i <= 400; ++i) {
      const T t = gamma * T(i) / T(activation == Activation::logistic ? 20 : 640);
      const Exact want = exact(activation, t, gamma);
      const T probability = T(0.75), e_left = T(2), e_right = T(-3);
      const Routed<T> routed = route<T>(routing, broadcast<T>(t), broadcast<T>(probability));
      CHECK(close<T>(routed.left[0], want.left * probability, 0.1L));
      CHECK(close<T>(routed.right[kLanes<T> - 1], want.right * probability, 0.1L));
      CHECK(routed.left[0] >= 0 && routed.right[0] >= 0);
      const Combined<T> combined =
          combine<T>(routing, broadcast<T>(t), broadcast<T>(probability), broadcast<T>(e_left), broadcast<T>(e_right));
      CHECK(close<T>(combined.expected[0], want.left * e_left + want.right * e_right, 5));
      CHECK(close<T>(combined.grad_t[0], want.slope * probability * (e_left - e_right), 1 / gamma));
    }
  });
}

// Hard at the edge, fractional at the next floating-point number inside it.
template <typename T>
static void is_exact_at_the_edges(Activation activation, T gamma) {
  const T edge = gamma / 2;
  with(activation, gamma, [&](auto routing) {
    for (T t : {edge, std::nextafter(edge, std::numeric_limits<T>::infinity()), edge * 1000}) {
      const Routed<T> left = route<T>(routing, broadcast<T>(t), broadcast<T>(T(1)));
      const Routed<T> right = route<T>(routing, broadcast<T>(-t), broadcast<T>(T(1)));
      CHECK(left.left[0] == 1 && left.right[0] == 0);
      CHECK(right.left[0] == 0 && right.right[0] == 1);
    }
    const T inside = std::nextafter(edge, T(0));
    CHECK(route<T>(routing, broadcast<T>(inside), broadcast<T>(T(1))).right[0] > 0);
    CHECK(route<T>(routing, broadcast<T>(-inside), broadcast<T>(T(1))).left[0] > 0);
  });
}

template <typename T>
static void all() {
  for (T gamma : {T(1e-4), T(0.1), T(1) / T(3), T(1), T(1.7), T(10)}) {
    for (Activation activation : {Activation::smooth_step, Activation::smoother_step, Activation::logistic}) {
      follows_the_definition<T>(activation, gamma);
    }
    is_exact_at_the_edges<T>(Activation::smooth_step, gamma);
    is_exact_at_the_edges<T>(Activation::smoother_step, gamma);
  }
  with(Activation::logistic, T(1), [](auto routing) {
    const Routed<T> far = route<T>(routing, broadcast<T>(T(1e6)), broadcast<T>(T(1)));
    CHECK(far.left[0] == 1 && far.right[0] == 0);
  });
}

int main() {
  return run_if_supported([] {
    all<float>();
    all<double>();
  });
}

// debug.h: a tape that does not fit the routing of the backward pass, and a list that does not have its properties, end
// the process. Compiled in debug builds only.
#include "run.h"  // first

#include <sys/wait.h>
#include <unistd.h>

#include "backward.h"
#include "forward.h"

using namespace softwood;
using namespace softwood::SOFTWOOD_ISA;

// Whether `body` ends the process by an assertion. A child process runs it.
template <typename Body>
static bool aborts(const Body& body) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    std::fclose(stderr);
    body();
    _exit(0);
  }
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

// A forward pass with its tape, to be changed before the backward pass.
template <typename T>
struct Passes {
  static constexpr std::int64_t n = 64, p = 3, m = 2, k = 1;
  static constexpr int d = 4;
  std::vector<T> x = std::vector<T>(n * kLanes<T>), panels = std::vector<T>(n * p);
  std::vector<T> split_weight = std::vector<T>(m * 15 * p), leaf_weight = std::vector<T>(m * 16 * k, 1);
  std::vector<T> grad_output = std::vector<T>(n * k, 1), grad_x = std::vector<T>(n * p);
  Unit<T> unit;
  Arena tape, scratch;
  Frontier<T>* root;

  explicit Passes(T spread) {
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t f = 0; f < p; ++f) {
        x[std::size_t(i * kLanes<T> + f)] = T((i * 7 + f * 5) % 13 - 6) / 6;
        panels[std::size_t(i / kPanelRows<T> * kPanelRows<T> * p + f * kPanelRows<T> + i % kPanelRows<T>)] =
            x[std::size_t(i * kLanes<T> + f)];
      }
    }
    for (std::size_t i = 0; i < split_weight.size(); ++i) split_weight[i] = spread * T(int(i * 11 % 17) - 8) / 8;
    unit.ensemble = {split_weight.data(), nullptr, leaf_weight.data(), m, p, k, d, Activation::smooth_step, T(1)};
    unit.x = {x.data(), n, kLanes<T>};
    unit.x_panels = panels.data();
    root = const_cast<Frontier<T>*>(Forward<T>(unit, nullptr, nullptr, &tape, scratch).run());
  }

  void backward() {
    Gradients<T> gradients{};
    gradients.x = grad_x.data();
    Backward<T>(unit, grad_output.data(), k, gradients, scratch).run(root);
  }

  // The first list of the tape.
  List<T>* list() const {
    Frontier<T>* frontier = root;
    while (frontier->list == nullptr) frontier = frontier->first;
    return frontier->list;
  }
};

template <typename T>
static void broken_tapes_are_noticed() {
  CHECK(!aborts([] { Passes<T>(T(6)).backward(); }));
  for (std::int64_t levels_down = 0; levels_down < 2; ++levels_down) {
    CHECK(aborts([&] {  // an entry that went one way now goes both ways
      Passes<T> passes(T(6));
      List<T>* list = passes.list();
      for (std::int64_t i = 0; i < levels_down; ++i) list = list->next;
      std::int64_t j = 0;
      while (std::abs(list->t[j]) < T(0.5)) ++j;
      list->t[j] = 0;
      passes.backward();
    }));
  }
  CHECK(aborts([] {  // a pair that the probabilities above do not reach
    Passes<T> passes(T(6));
    passes.list()->pair[0] += 1;
    passes.backward();
  }));
  CHECK(aborts([] {  // an activation other than that of the tape
    Passes<T> passes(T(6));
    passes.unit.ensemble.gamma = T(4);
    passes.backward();
  }));
}

template <typename T>
static void broken_lists_are_noticed() {
  const auto checked = [](bool grouped, Integer<T> second_code, T probability, Integer<T> sample) {
    Arena arena, scratch;
    List<T>* list = allocate_list<T>(arena, 3, grouped, false);
    const Integer<T> codes[] = {4, second_code, 4};
    for (int j = 0; j < 3; ++j) {
      list->pair[j] = codes[j] << kSampleBits | sample;
      list->probability[j] = probability;
    }
    pad_list(*list);
    return aborts([&] { check_list(*list, 8, 10, scratch); });
  };
  CHECK(!checked(true, 4, T(1), 9) && !checked(false, 5, T(1), 9));
  CHECK(checked(true, 5, T(1), 9));    // the entries of a node are not adjacent
  CHECK(checked(false, 8, T(1), 9));   // no such node
  CHECK(checked(false, 4, T(2), 9));   // no probability
  CHECK(checked(false, 4, T(1), 10));  // no such sample
}

int main() {
  return run_if_supported([] {
    broken_tapes_are_noticed<float>();
    broken_tapes_are_noticed<double>();
    broken_lists_are_noticed<float>();
    broken_lists_are_noticed<double>();
  });
}

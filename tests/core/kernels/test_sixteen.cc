// sixteen.h: each operation against a loop over the lanes, shuffles for patterns of every kind.
#include "run.h"  // first

#include "sixteen.h"

using namespace softwood::SOFTWOOD_ISA;

namespace {

Sixteen numbers(float first, float step) {
  float v[16];
  for (int i = 0; i < 16; ++i) v[i] = first + step * float(i);
  return load_sixteen(v);
}

template <typename Expected>
bool equals(const Sixteen& found, const Expected& expected) {
  float v[16];
  store_sixteen(v, found);
  bool right = true;
  for (int i = 0; i < 16; ++i) right = right && v[i] == expected(i);
  return right;
}

struct Same {
  static constexpr int source(int lane) { return lane; }
};
struct Reversed {
  static constexpr int source(int lane) { return 31 - lane; }
};
struct OneLane {
  static constexpr int source(int) { return 19; }
};
struct Scattered {  // every register of the result needs several of both operands
  static constexpr int source(int lane) { return (lane * 13 + lane / 3) % 32; }
};
struct Blend {
  static constexpr int source(int lane) { return lane % 3 == 0 ? 16 + lane : lane; }
};

template <typename Pattern>
void check_shuffle() {
  const Sixteen a = numbers(0, 1), b = numbers(16, 1);
  CHECK(equals(shuffle<Pattern>(a, b), [](int lane) { return float(Pattern::source(lane)); }));
}

void check_all() {
  const Sixteen a = numbers(1, 1), b = numbers(-3, 0.5);
  CHECK(equals(a + b, [](int i) { return float(1 + i) + (-3 + 0.5f * float(i)); }));
  CHECK(equals(a - b, [](int i) { return float(1 + i) - (-3 + 0.5f * float(i)); }));
  CHECK(equals(a * b, [](int i) { return float(1 + i) * (-3 + 0.5f * float(i)); }));
  CHECK(equals(a * 3, [](int i) { return float(1 + i) * 3; }));
  CHECK(nonzero_bits(b) == 0xffffu - (1u << 6));
  CHECK(nonzero_bits(Sixteen{}) == 0);
  float v[16];
  store_sixteen(v, a);
  CHECK(sum_lanes(v) == 136);
  check_shuffle<Same>();
  check_shuffle<Reversed>();
  check_shuffle<OneLane>();
  check_shuffle<Scattered>();
  check_shuffle<Blend>();
}

}  // namespace

int main() {
  return run_if_supported([] { check_all(); });
}

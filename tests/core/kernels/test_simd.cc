// simd.h: each operation against a loop over the lanes.
#include "run.h"  // first

#include "simd.h"

using namespace softwood::SOFTWOOD_ISA;

template <typename T>
static void partial_rows_touch_nothing_else() {
  constexpr int W = kLanes<T>;
  for (int count = 1; count <= W; ++count) {
    const Tail<T> tail(count);
    T from[W], to[W];
    for (int i = 0; i < W; ++i) from[i] = T(i + 1), to[i] = T(-1);
    const Vector<T> v = load(from, tail);
    store(to, v, tail);
    for (int i = 0; i < W; ++i) {
      CHECK(v[i] == (i < count ? T(i + 1) : T(0)));
      CHECK(to[i] == (i < count ? T(i + 1) : T(-1)));
    }
  }
}

template <typename T>
static void compress_and_expand_are_inverse() {
  constexpr int W = kLanes<T>;
  Vector<T> v;
  Integers<T> codes;
  for (int i = 0; i < W; ++i) v[i] = T(10 + i), codes[i] = 20 + i;
  for (std::uint32_t set = 0; set < (1u << W); ++set) {
    Integers<T> mask;
    for (int i = 0; i < W; ++i) mask[i] = -int(set >> i & 1);
    CHECK(bits<T>(mask) == set);
    CHECK(count_bits(set) == __builtin_popcount(set));
    const Vector<T> front = compress<T>(v, set);
    const Integers<T> front_codes = compress<T>(codes, set);
    const Vector<T> back = expand<T>(front, set, mask);
    int next = 0;
    bool right = true;
    for (int i = 0; i < W; ++i) {
      right &= back[i] == (mask[i] ? v[i] : T(0));
      if (mask[i]) {
        right &= front[next] == v[i] && front_codes[next] == codes[i];
        ++next;
      }
    }
    CHECK(right);
  }
}

template <typename T>
static void squares_are_transposed() {
  constexpr int W = kLanes<T>;
  Vector<T> rows[W];
  for (int r = 0; r < W; ++r) {
    for (int c = 0; c < W; ++c) rows[r][c] = T(100 * r + c);
  }
  transpose<T>(rows);
  for (int r = 0; r < W; ++r) {
    for (int c = 0; c < W; ++c) CHECK(rows[r][c] == T(100 * c + r));
  }
}

template <typename T>
static void lanes_are_summed_and_signs_dropped() {
  constexpr int W = kLanes<T>;
  Vector<T> v;
  for (int i = 0; i < W; ++i) v[i] = T(i % 2 ? -i : i);
  T total = 0;
  for (int i = 0; i < W; ++i) total += v[i];
  CHECK(sum<T>(v) == total);
  const Vector<T> magnitude = absolute<T>(v);
  for (int i = 0; i < W; ++i) CHECK(magnitude[i] == T(i));
  CHECK(!std::signbit(absolute<T>(broadcast<T>(T(-0.0)))[0]));
  CHECK(std::isnan(absolute<T>(broadcast<T>(std::numeric_limits<T>::quiet_NaN()))[0]));
  CHECK(broadcast<T>(T(3))[W - 1] == T(3));
  CHECK(broadcast_integer<T>(7)[W - 1] == 7);
}

template <typename T>
static void lanes_are_chosen_by_sign() {
  const T nan = std::numeric_limits<T>::quiet_NaN();
  const T values[] = {1, -1, T(0.0), T(-0.0), -nan, nan};
  for (T value : values) {
    const auto chosen = select_by_sign<T>(broadcast<T>(value), broadcast<T>(T(7)), broadcast<T>(T(8)));
    CHECK(chosen[0] == (std::signbit(value) ? 7 : 8) && chosen[kLanes<T> - 1] == chosen[0]);
  }
}

// The check's own value must be opaque, or the compiler computes it beforehand.
template <typename T>
static void subnormals_are_flushed_only_inside() {
  volatile T tiny = std::numeric_limits<T>::min();
  {
    const FlushSubnormals flush;
    [[maybe_unused]] volatile T half = tiny / 2;
#if defined(__x86_64__) || defined(__aarch64__)
    CHECK(half == 0);
#endif
  }
  volatile T half = tiny / 2;
  CHECK(half > 0);
}

template <typename T>
static void all() {
  partial_rows_touch_nothing_else<T>();
  compress_and_expand_are_inverse<T>();
  squares_are_transposed<T>();
  lanes_are_summed_and_signs_dropped<T>();
  lanes_are_chosen_by_sign<T>();
  subnormals_are_flushed_only_inside<T>();
}

int main() {
  return run_if_supported([] {
    all<float>();
    all<double>();
  });
}

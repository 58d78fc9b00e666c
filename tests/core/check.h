// CHECK prints an expression that is false and makes `report` return 1.
#pragma once

#include <cstdio>

namespace softwood::testing {

inline int n_checks = 0;
inline int n_failures = 0;

inline void check(bool holds, const char* expression, const char* file, int line) {
  ++n_checks;
  if (holds) return;
  ++n_failures;
  std::fprintf(stderr, "%s:%d: failed: %s\n", file, line, expression);
}

inline int report() {
  std::printf("%d checks, %d failures\n", n_checks, n_failures);
  return n_failures == 0 && n_checks > 0 ? 0 : 1;
}

}  // namespace softwood::testing

#define CHECK(...) softwood::testing::check(static_cast<bool>(__VA_ARGS__), #__VA_ARGS__, __FILE__, __LINE__)

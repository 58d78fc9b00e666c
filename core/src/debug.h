// Assertions of the invariants that the kernels rely on. They cost nothing unless SOFTWOOD_DEBUG is defined (`make
// debug`), where a violated one aborts the process. docs/kernels.md lists the invariants.
#pragma once

namespace softwood {

// Prints the expression and where it stands, and aborts.
[[noreturn]] void assertion_failed(const char* expression, const char* file, int line);

}  // namespace softwood

#if defined(SOFTWOOD_DEBUG)
#define SOFTWOOD_ASSERT(...) \
  (static_cast<bool>(__VA_ARGS__) ? void() : ::softwood::assertion_failed(#__VA_ARGS__, __FILE__, __LINE__))
#else
#define SOFTWOOD_ASSERT(...) static_cast<void>(0)
#endif

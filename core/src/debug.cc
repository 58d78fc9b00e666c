#include "debug.h"

#include <cstdio>
#include <cstdlib>

namespace softwood {

void assertion_failed(const char* expression, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: softwood: broken invariant: %s; please report this\n", file, line, expression);
  std::abort();
}

}  // namespace softwood

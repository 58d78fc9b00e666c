#pragma once

#include "arrays.h"
#include "softwood/encoding.h"

namespace softwood::bindings {

// A view of the named arrays, checked so that no feature reads past a base row. The caller keeps the arrays alive.
Encoding encoding_of(const nb::dict& arrays, std::int64_t n_base_columns);

}  // namespace softwood::bindings

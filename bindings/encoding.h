#pragma once

#include "arrays.h"
#include "softwood/encoding.h"

namespace softwood::bindings {

// A copy of the named arrays, checked so that no feature reads past a base row.
Encoding encoding_of(const nb::dict& arrays, std::int64_t n_base_columns);

}  // namespace softwood::bindings

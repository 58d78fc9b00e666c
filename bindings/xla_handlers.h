// Entry points for XLA's foreign-function interface, as the addresses that jax.ffi.register_ffi_target takes.
#pragma once

namespace softwood::xla {

void* forward_handler();
void* backward_handler();

}  // namespace softwood::xla

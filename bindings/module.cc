// The compiled module softwood._core. It is private; docs/architecture.md names the modules that import it.
#include <nanobind/nanobind.h>

namespace softwood::bindings {
void bind_tensors(nanobind::module_& module);
void bind_encoding(nanobind::module_& module);
void bind_ensemble(nanobind::module_& module);
void bind_lookup(nanobind::module_& module);
void bind_predictor(nanobind::module_& module);
void bind_trainer(nanobind::module_& module);
void bind_xla(nanobind::module_& module);
}  // namespace softwood::bindings

NB_MODULE(_core, module) {
  // A framework's graph that is still alive at interpreter exit keeps its tape; the user need not be warned.
  nanobind::set_leak_warnings(false);
  softwood::bindings::bind_encoding(module);
  softwood::bindings::bind_ensemble(module);
  softwood::bindings::bind_tensors(module);
  softwood::bindings::bind_lookup(module);
  softwood::bindings::bind_predictor(module);
  softwood::bindings::bind_trainer(module);
  softwood::bindings::bind_xla(module);
}

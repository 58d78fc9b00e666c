// The compiled module softwood._core. It is private: softwood.ops is its only importer.
#include <nanobind/nanobind.h>

namespace softwood::bindings {
void bind_ensemble(nanobind::module_& module);
void bind_xla(nanobind::module_& module);
}  // namespace softwood::bindings

NB_MODULE(_core, module) {
  softwood::bindings::bind_ensemble(module);
  softwood::bindings::bind_xla(module);
}

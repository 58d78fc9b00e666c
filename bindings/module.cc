// The compiled module softwood._core. It is private: softwood.ops, softwood.tabular.features, softwood.training.state,
// softwood.model.predictor and softwood.torch.native are its only importers.
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
  // A framework's graph that is still alive when the interpreter ends keeps its tape: nothing to warn the user of.
  nanobind::set_leak_warnings(false);
  softwood::bindings::bind_encoding(module);
  softwood::bindings::bind_ensemble(module);
  softwood::bindings::bind_tensors(module);
  softwood::bindings::bind_lookup(module);
  softwood::bindings::bind_predictor(module);
  softwood::bindings::bind_trainer(module);
  softwood::bindings::bind_xla(module);
}

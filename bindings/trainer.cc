// The trainer, for float and double. A member keeps the arrays it was made from alive and works on them in place;
// between two epochs Python may read and copy them.
#include "softwood/trainer.h"

#include <memory>
#include <string>
#include <utility>

#include "encoding.h"
#include "members.h"

namespace softwood::bindings {
namespace {

using namespace nb::literals;

template <typename T>
Parameters<T> parameters_of(const nb::dict& arrays, const MemberSettings<T>& settings) {
  const std::int64_t m = settings.n_trees, p = settings.n_features, k = settings.loss.n_outputs;
  const std::int64_t n_leaves = std::int64_t{1} << settings.depth, n_splits = n_leaves - 1;
  const bool averaging = settings.adam.average_decay > 0, normalising = settings.normalisation != Normalisation::none;
  Parameters<T> parameters{};
  parameters.split_weight = parameter<T>(arrays, "split_weight", {m, n_splits, p}, averaging, false);
  parameters.split_bias = parameter<T>(arrays, "split_bias", {m, n_splits}, averaging, true);
  parameters.leaf_weight = parameter<T>(arrays, "leaf_weight", {m, n_leaves, k}, averaging, false);
  parameters.offset = array<T>(arrays, "offset", {k});
  if (normalising) {
    parameters.scale = parameter<T>(arrays, "scale", {p}, averaging, false);
    parameters.shift = parameter<T>(arrays, "shift", {p}, averaging, false);
    parameters.mean = array<T>(arrays, "mean", {p});
    parameters.variance = array<T>(arrays, "variance", {p});
  }
  if (averaging) {
    parameters.split_step = array<std::int64_t>(arrays, "split_step", {m, n_splits});
    parameters.leaf_step = array<std::int64_t>(arrays, "leaf_step", {m, n_leaves});
  }
  return parameters;
}

// `samples` has the keys x, rows (or None) and encoding (its arrays, or None), which is written to `encoding` if there
// is one; targets and weights are those of `labels`.
template <typename T>
Samples<T> samples_of(const nb::dict& samples, std::int64_t n_features, const Loss<T>& loss, Encoding& encoding) {
  const auto x = nb::cast<Input<T, 2>>(samples["x"], false);
  const auto n = static_cast<std::int64_t>(x.shape(0)), n_columns = static_cast<std::int64_t>(x.shape(1));
  const Labels<T> labels = labels_of<T>(samples, n, loss);
  Samples<T> result{
      {x.data(), n, n_columns}, labels.targets, labels.weight, labels.rows, labels.n_rows, nullptr, labels.offset};
  if (samples["encoding"].is_none()) {
    require(n_columns == n_features, "x has the wrong shape");
  } else {
    encoding = encoding_of(nb::cast<nb::dict>(samples["encoding"]), n_columns);
    require(encoding.n_features() == n_features, "the encoding has the wrong number of features");
    result.encoding = &encoding;
  }
  return result;
}

template <typename T>
MemberSettings<T> settings_of(const nb::dict& given, const nb::object& custom) {
  LoopSettings<T> loop = loop_settings_of<T>(given, custom);
  MemberSettings<T> settings{};
  settings.n_trees = setting<std::int64_t>(given, "n_trees");
  settings.n_features = setting<std::int64_t>(given, "n_features");
  settings.depth = setting<int>(given, "depth");
  settings.activation = choice(given, "activation", static_cast<Activation>(kActivations - 1));
  settings.normalisation = choice(given, "normalisation", Normalisation::training_set);
  settings.normalisation_epsilon = setting<double>(given, "batch_norm_epsilon");
  settings.batch_size = loop.batch_size;
  settings.seed = loop.seed;
  settings.schedule = loop.schedule;
  settings.adam = adam_settings_of(given);
  settings.loss = std::move(loop.loss);
  require(settings.n_trees >= 1 && settings.n_features >= 1, "sizes must be positive");
  if (settings.depth < 1 || settings.depth > kMaxDepth) refuse("depth must be 1 to " + std::to_string(kMaxDepth));
  return settings;
}

template <typename T>
class Member {
 public:
  using Number = T;

  Member(const nb::dict& settings, nb::dict arrays, nb::dict train, nb::object validation, nb::object custom) {
    MemberSettings<T> checked = settings_of<T>(settings, custom);
    const Samples<T> train_rows = samples_of<T>(train, checked.n_features, checked.loss, train_encoding);
    require(train_rows.n_rows >= 1, "there must be training rows");
    Samples<T> held_out{};
    T* scores = nullptr;
    if (!validation.is_none()) {
      const auto given = nb::cast<nb::dict>(validation);
      held_out = samples_of<T>(given, checked.n_features, checked.loss, validation_encoding);
      scores = scores_of(given, held_out.labels(), checked.loss);
    }
    const Parameters<T> parameters = parameters_of<T>(arrays, checked);
    trainer = std::make_unique<Trainer<T>>(std::move(checked), parameters, train_rows, held_out);
    trainer->validation_scores = scores;
    owners = nb::make_tuple(copy_of(arrays), copy_of(train), copy_of(validation));
  }

  std::unique_ptr<Trainer<T>> trainer;
  Encoding train_encoding{}, validation_encoding{};
  nb::object owners;     // of all memory that the trainer uses
  bool running = false;  // an epoch; read and written under the GIL
};

template <typename T>
void bind_member(nb::module_& module, const char* name) {
  using Class = Member<T>;
  nb::class_<Class> bound(module, name);
  bound.def(nb::init<const nb::dict&, nb::dict, nb::dict, nb::object, nb::object>(), "settings"_a, "arrays"_a,
            "train"_a, "validation"_a.none(), "custom_loss"_a.none());
  bind_protocol(bound);
  bound.def_static(
      "column_statistics",
      [](const nb::dict& samples, const Output<double, 1>& mean, const Output<double, 1>& variance, int n_threads) {
        const auto p = static_cast<std::int64_t>(mean.shape(0));
        Encoding encoding{};
        // Targets are not read, but their shape is checked.
        const auto targets = nb::cast<Input<T, 2>>(samples["targets"], false);
        const Loss<T> any{LossKind::custom, 1, static_cast<std::int64_t>(targets.shape(1))};
        const Samples<T> view = samples_of<T>(samples, p, any, encoding);
        require(view.n_rows >= 1 && has_shape(variance, {p}),
                "there must be rows, and one mean and variance per column");
        nb::gil_scoped_release unlocked;
        column_statistics(view, p, mean.data(), variance.data(), n_threads);
      },
      "samples"_a, "mean"_a.noconvert(), "variance"_a.noconvert(), "n_threads"_a);
}

}  // namespace

void bind_trainer(nb::module_& module) {
  bind_member<float>(module, "TrainerFloat32");
  bind_member<double>(module, "TrainerFloat64");
  module.def(
      "shuffled_order",
      [](std::uint64_t seed, std::int64_t epoch, const Output<std::int64_t, 1>& order) {
        shuffled_order(seed, epoch, {order.data(), order.shape(0)});
      },
      "seed"_a, "epoch"_a, "order"_a.noconvert());
}

}  // namespace softwood::bindings

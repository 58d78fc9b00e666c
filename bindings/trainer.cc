// The trainer, for float and double. A member keeps the arrays it was made from alive and works on them in place;
// between two epochs Python may read and copy them.
#include "softwood/trainer.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "encoding.h"
#include "settings.h"

namespace softwood::bindings {
namespace {

using namespace nb::literals;

template <typename T>
Parameter<T> parameter(const nb::dict& arrays, const std::string& name, std::initializer_list<std::int64_t> shape,
                       bool averaging, bool optional) {
  T* const value = array<T>(arrays, name, shape, optional);
  if (value == nullptr) return {};
  return {value, array<T>(arrays, name + ".first_moment", shape), array<T>(arrays, name + ".second_moment", shape),
          averaging ? array<T>(arrays, name + ".average", shape) : nullptr,
          averaging ? array<T>(arrays, name + ".evaluated", shape) : value};
}

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

// `samples` has the keys x, targets, weight (or None), rows (or None) and encoding (its arrays, or None), which is
// copied to `encoding`.
template <typename T>
Samples<T> samples_of(const nb::dict& samples, std::int64_t n_features, Encoding& encoding) {
  const auto x = nb::cast<Input<T, 2>>(samples["x"], false);
  const auto targets = nb::cast<Input<T, 2>>(samples["targets"], false);
  const auto n = static_cast<std::int64_t>(x.shape(0)), n_columns = static_cast<std::int64_t>(x.shape(1));
  require(static_cast<std::int64_t>(targets.shape(0)) == n, "targets must have the rows of x");
  Samples<T> result{{x.data(), n, n_columns}, targets.data(), nullptr, nullptr, n, nullptr};
  if (samples["encoding"].is_none()) {
    require(n_columns == n_features, "x has the wrong shape");
  } else {
    encoding = encoding_of(nb::cast<nb::dict>(samples["encoding"]), n_columns);
    require(encoding.n_features() == n_features, "the encoding has the wrong number of features");
    result.encoding = &encoding;
  }
  if (!samples["weight"].is_none()) {
    const auto weight = nb::cast<Input<T, 1>>(samples["weight"], false);
    require(has_shape(weight, {n}), "weight must have the rows of x");
    result.weight = weight.data();
  }
  if (!samples["rows"].is_none()) {
    const auto rows = nb::cast<Input<std::int64_t, 1>>(samples["rows"], false);
    result.rows = rows.data();
    result.n_rows = static_cast<std::int64_t>(rows.shape(0));
    for (std::int64_t i = 0; i < result.n_rows; ++i) {
      require(result.rows[i] >= 0 && result.rows[i] < n, "rows must be indices of rows of x");
    }
  }
  return result;
}

template <typename T>
void check_targets(const nb::dict& samples, const Samples<T>& view, const Loss<T>& loss) {
  const auto targets = nb::cast<Input<T, 2>>(samples["targets"], false);
  require(static_cast<std::int64_t>(targets.shape(1)) == loss.n_targets, "targets must have n_targets columns");
  if (loss.kind != LossKind::cross_entropy) return;
  for (std::int64_t i = 0; i < view.n_rows; ++i) {
    const T label = view.targets[view.row(i)];
    require(label >= 0 && label < T(loss.n_outputs), "targets must be class numbers below n_outputs");
  }
}

// The wrapped callable returns (gradient, loss), the gradient contiguous and of the right dtype. It gets copies, which
// it may keep.
template <typename T>
CustomLoss<T> custom_loss(nb::callable function, std::int64_t n_outputs, std::int64_t n_targets) {
  // The last copy may be destroyed on any thread, so the reference is released under the GIL.
  const std::shared_ptr<nb::callable> held(new nb::callable(std::move(function)), [](nb::callable* owned) {
    nb::gil_scoped_acquire locked;
    delete owned;
  });
  return [held, n_outputs, n_targets](const T* scores, const T* targets, const T* weight, std::int64_t n, T* gradient) {
    nb::gil_scoped_acquire locked;
    const auto view = [n](const T* data, std::int64_t columns) {
      const std::size_t shape[2] = {static_cast<std::size_t>(n), static_cast<std::size_t>(columns)};
      return nb::cast(nb::ndarray<const T, nb::numpy>(data, columns > 0 ? 2 : 1, shape), nb::rv_policy::copy);
    };
    const nb::object result = (*held)(view(scores, n_outputs), view(targets, n_targets), view(weight, 0));
    const auto pair = nb::cast<nb::tuple>(result);
    const auto given = nb::cast<Input<T, 2>>(pair[0], false);
    require(has_shape(given, {n, n_outputs}), "the gradient must have the shape of the predictions");
    if (gradient != nullptr) std::copy_n(given.data(), n * n_outputs, gradient);
    return nb::cast<double>(pair[1]);
  };
}

template <typename T>
MemberSettings<T> settings_of(const nb::dict& given, nb::object custom) {
  MemberSettings<T> settings{};
  settings.n_trees = setting<std::int64_t>(given, "n_trees");
  settings.n_features = setting<std::int64_t>(given, "n_features");
  settings.depth = setting<int>(given, "depth");
  settings.activation = choice(given, "activation", static_cast<Activation>(kActivations - 1));
  settings.normalisation = choice(given, "normalisation", Normalisation::training_set);
  settings.normalisation_epsilon = setting<double>(given, "batch_norm_epsilon");
  settings.batch_size = setting<std::int64_t>(given, "batch_size");
  settings.seed = setting<std::uint64_t>(given, "seed");
  settings.schedule = {.learning_rate = setting<double>(given, "learning_rate"),
                       .gamma = setting<double>(given, "gamma"),
                       .gamma_end = setting<double>(given, "gamma_end"),
                       .anneal_begin = setting<double>(given, "anneal_begin"),
                       .anneal_end = setting<double>(given, "anneal_end"),
                       .warmup = setting<double>(given, "warmup"),
                       .cosine = setting<bool>(given, "cosine"),
                       .n_steps = setting<std::int64_t>(given, "n_steps")};
  settings.adam = {.updates = choice(given, "updates", Updates::automatic),
                   .beta1 = setting<double>(given, "beta1"),
                   .beta2 = setting<double>(given, "beta2"),
                   .epsilon = setting<double>(given, "epsilon"),
                   .l1 = setting<double>(given, "l1"),
                   .l2 = setting<double>(given, "l2"),
                   .weight_decay = setting<double>(given, "weight_decay"),
                   .average_decay = setting<double>(given, "average_decay")};
  Loss<T>& loss = settings.loss;
  loss.kind = choice(given, "loss", LossKind::custom);
  loss.n_outputs = setting<std::int64_t>(given, "n_outputs");
  loss.n_targets = setting<std::int64_t>(given, "n_targets");
  loss.label_smoothing = T(setting<double>(given, "label_smoothing"));
  loss.delta = T(setting<double>(given, "delta"));
  loss.power = T(setting<double>(given, "power"));
  for (const double quantile : setting<std::vector<double>>(given, "quantiles")) loss.quantiles.push_back(T(quantile));

  require(settings.n_trees >= 1 && settings.n_features >= 1 && settings.batch_size >= 1, "sizes must be positive");
  if (settings.depth < 1 || settings.depth > kMaxDepth) refuse("depth must be 1 to " + std::to_string(kMaxDepth));
  require(T(settings.schedule.gamma) > 0 && T(settings.schedule.gamma_end) > 0, "gamma must be positive");
  require(loss.n_targets >= 1 && loss.n_outputs >= 1, "sizes must be positive");
  const auto per_target = loss.kind == LossKind::quantile ? static_cast<std::int64_t>(loss.quantiles.size()) : 1;
  const bool free_outputs = loss.kind == LossKind::cross_entropy || loss.kind == LossKind::custom;
  require(free_outputs || loss.n_outputs == loss.n_targets * per_target, "n_outputs does not fit the loss");
  if (loss.kind == LossKind::custom) {
    loss.custom = custom_loss<T>(nb::cast<nb::callable>(custom), loss.n_outputs, loss.n_targets);
  }
  return settings;
}

template <typename T>
class Member {
 public:
  Member(const nb::dict& settings, nb::dict arrays, nb::dict train, nb::object validation, nb::object custom) {
    MemberSettings<T> checked = settings_of<T>(settings, custom);
    const Samples<T> train_rows = samples_of<T>(train, checked.n_features, train_encoding);
    require(train_rows.n_rows >= 1, "there must be training rows");
    check_targets(train, train_rows, checked.loss);
    Samples<T> held_out{};
    if (!validation.is_none()) {
      const auto given = nb::cast<nb::dict>(validation);
      held_out = samples_of<T>(given, checked.n_features, validation_encoding);
      check_targets(given, held_out, checked.loss);
    }
    const Parameters<T> parameters = parameters_of<T>(arrays, checked);
    trainer = std::make_unique<Trainer<T>>(std::move(checked), parameters, train_rows, held_out);
    // Copies of the dicts: the caller may replace an array in its own.
    owners = nb::make_tuple(copy_of(arrays), copy_of(train), validation.is_none() ? validation : copy_of(validation));
  }

  std::unique_ptr<Trainer<T>> trainer;
  Encoding train_encoding{}, validation_encoding{};
  nb::object owners;     // of all memory that the trainer uses
  bool running = false;  // an epoch; read and written under the GIL

 private:
  static nb::object copy_of(nb::handle dict) { return nb::steal(PyDict_Copy(dict.ptr())); }
};

// Members that train until the end of the scope, which must hold the GIL at both ends.
template <typename T>
class RunningMembers {
 public:
  explicit RunningMembers(const nb::list& members) {
    for (nb::handle member : members) {
      members_.push_back(nb::cast<Member<T>*>(member));
      owners_.push_back(nb::borrow(member));
      trainers.push_back(members_.back()->trainer.get());
    }
    for (const Member<T>* member : members_) {
      const bool is_free = !member->running && std::count(members_.begin(), members_.end(), member) == 1;
      require(is_free, "a member can only run one epoch at a time");
    }
    for (Member<T>* member : members_) member->running = true;
  }
  ~RunningMembers() {
    for (Member<T>* member : members_) member->running = false;
  }
  RunningMembers(const RunningMembers&) = delete;
  RunningMembers& operator=(const RunningMembers&) = delete;

  std::vector<Trainer<T>*> trainers;

 private:
  std::vector<Member<T>*> members_;
  std::vector<nb::object> owners_;
};

bool signal_pending(std::exception_ptr& raised) {
  nb::gil_scoped_acquire locked;
  if (PyErr_CheckSignals() == 0) return false;
  raised = std::make_exception_ptr(nb::python_error());
  return true;
}

// Python runs signal handlers only on its main thread. If that thread works alone, it checks for signals between steps;
// if it shared the work with others, it might finish long before them, so it waits and leaves the work to them.
template <typename T>
std::vector<EpochOutcome> run_interruptibly(const std::vector<Trainer<T>*>& trainers, std::int64_t epoch,
                                            double seconds_left, int n_threads) {
  nb::gil_scoped_release unlocked;
  std::exception_ptr raised;
  std::vector<EpochOutcome> outcomes;
  if (n_threads == 1 || trainers.size() == 1) {
    Control control(seconds_left, [&] { return signal_pending(raised); });
    outcomes = run_epoch<T>(trainers, epoch, control, n_threads);
  } else {
    Control control(seconds_left);
    auto work = std::async(std::launch::async, [&] { return run_epoch<T>(trainers, epoch, control, n_threads); });
    while (work.wait_for(std::chrono::milliseconds(50)) != std::future_status::ready) {
      if (!raised && signal_pending(raised)) control.stop();
    }
    outcomes = work.get();
  }
  if (raised) std::rethrow_exception(raised);
  return outcomes;
}

template <typename T>
nb::list run_members(const nb::list& members, std::int64_t epoch, double seconds_left, int n_threads) {
  require(n_threads >= 1, "n_threads must be positive");
  const RunningMembers<T> running(members);
  nb::list result;
  for (const EpochOutcome& o : run_interruptibly<T>(running.trainers, epoch, seconds_left, n_threads)) {
    result.append(nb::make_tuple(static_cast<int>(o.status), o.steps_done, o.train_loss, o.validation_loss,
                                 o.mean_reachable_leaves, o.learning_rate, o.gamma, o.seconds, o.validation_metric));
  }
  return result;
}

template <typename T>
void bind_member(nb::module_& module, const char* name) {
  using Class = Member<T>;
  nb::class_<Class>(module, name)
      .def(nb::init<const nb::dict&, nb::dict, nb::dict, nb::object, nb::object>(), "settings"_a, "arrays"_a, "train"_a,
           "validation"_a.none(), "custom_loss"_a.none())
      .def_prop_ro("gamma", [](const Class& member) { return member.trainer->gamma(); })
      .def_prop_rw(
          "schedule_step", [](const Class& member) { return member.trainer->schedule_step; },
          [](Class& member, std::int64_t step) { member.trainer->schedule_step = step; })
      .def_prop_rw(
          "adam_step", [](const Class& member) { return member.trainer->adam_step; },
          [](Class& member, std::int64_t step) { member.trainer->adam_step = step; })
      .def_static("run_epoch", &run_members<T>, "members"_a, "epoch"_a, "seconds_left"_a, "n_threads"_a)
      .def_static(
          "column_statistics",
          [](const nb::dict& samples, const Output<double, 1>& mean, const Output<double, 1>& variance, int n_threads) {
            const auto p = static_cast<std::int64_t>(mean.shape(0));
            Encoding encoding{};
            const Samples<T> view = samples_of<T>(samples, p, encoding);
            require(view.n_rows >= 1 && has_shape(variance, {p}), "there must be one mean and variance per column");
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

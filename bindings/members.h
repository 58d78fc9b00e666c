// What members of every kind of trees share: settings of a fit, labels, trained arrays, and the protocol of their
// Python classes. A member keeps the arrays it was made from alive and works on them in place; between two epochs
// Python may read and copy them.
#pragma once

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "settings.h"
#include "softwood/trainer.h"

namespace softwood::bindings {

template <typename T>
Parameter<T> parameter(const nb::dict& arrays, const std::string& name, std::initializer_list<std::int64_t> shape,
                       bool averaging, bool optional) {
  T* const value = array<T>(arrays, name, shape, optional);
  if (value == nullptr) return {};
  return {value, array<T>(arrays, name + ".first_moment", shape), array<T>(arrays, name + ".second_moment", shape),
          averaging ? array<T>(arrays, name + ".average", shape) : nullptr,
          averaging ? array<T>(arrays, name + ".evaluated", shape) : value};
}

// The wrapped callable returns (gradient, loss), the gradient contiguous and of the right dtype. It gets copies: it may
// keep them.
template <typename T>
CustomLoss<T> custom_loss(nb::callable function, std::int64_t n_outputs, std::int64_t n_targets) {
  // Destroyed wherever the last trainer goes, so the reference is given back under the GIL.
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

// Batches, seed, schedule and loss.
template <typename T>
LoopSettings<T> loop_settings_of(const nb::dict& given, const nb::object& custom) {
  LoopSettings<T> settings{};
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
  Loss<T>& loss = settings.loss;
  loss.kind = choice(given, "loss", LossKind::custom);
  loss.n_outputs = setting<std::int64_t>(given, "n_outputs");
  loss.n_targets = setting<std::int64_t>(given, "n_targets");
  loss.label_smoothing = T(setting<double>(given, "label_smoothing"));
  loss.delta = T(setting<double>(given, "delta"));
  loss.power = T(setting<double>(given, "power"));
  for (const double quantile : setting<std::vector<double>>(given, "quantiles")) loss.quantiles.push_back(T(quantile));

  require(settings.batch_size >= 1 && loss.n_targets >= 1 && loss.n_outputs >= 1, "sizes must be positive");
  require(T(settings.schedule.gamma) > 0 && T(settings.schedule.gamma_end) > 0, "gamma must be positive");
  const auto per_target = loss.kind == LossKind::quantile ? static_cast<std::int64_t>(loss.quantiles.size()) : 1;
  const bool free_outputs = loss.kind == LossKind::cross_entropy || loss.kind == LossKind::custom;
  require(free_outputs || loss.n_outputs == loss.n_targets * per_target, "n_outputs does not fit the loss");
  const bool is_softmax = loss.kind == LossKind::cross_entropy;
  require(!is_softmax || loss.n_targets == 1 || loss.n_targets == loss.n_outputs, "n_targets does not fit the loss");
  if (loss.kind == LossKind::custom) {
    loss.custom = custom_loss<T>(nb::cast<nb::callable>(custom), loss.n_outputs, loss.n_targets);
  }
  return settings;
}

inline AdamSettings adam_settings_of(const nb::dict& given) {
  return {
      .updates = choice(given, "updates", Updates::automatic),
      .beta1 = setting<double>(given, "beta1"),
      .beta2 = setting<double>(given, "beta2"),
      .epsilon = setting<double>(given, "epsilon"),
      .l1 = setting<double>(given, "l1"),
      .l2 = setting<double>(given, "l2"),
      .weight_decay = setting<double>(given, "weight_decay"),
      .average_decay = setting<double>(given, "average_decay"),
      .split_weight_decay = given.contains("split_weight_decay") ? setting<double>(given, "split_weight_decay") : 0.0};
}

// The keys targets, weight, rows and offset (these may be None) of a dict of samples, whose table has `n` rows.
template <typename T>
Labels<T> labels_of(const nb::dict& samples, std::int64_t n, const Loss<T>& loss) {
  const auto targets = nb::cast<Input<T, 2>>(samples["targets"], false);
  require(static_cast<std::int64_t>(targets.shape(0)) == n, "targets must have the rows of x");
  require(static_cast<std::int64_t>(targets.shape(1)) == loss.n_targets, "targets must have n_targets columns");
  Labels<T> result{targets.data(), nullptr, nullptr, n, n};
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
  result.offset = array<T>(samples, "offset", {n, loss.n_outputs}, true);
  if (loss.kind != LossKind::cross_entropy || loss.n_targets > 1) return result;
  for (std::int64_t i = 0; i < result.n_rows; ++i) {
    const T label = result.targets[result.row(i)];
    require(label >= 0 && label < T(loss.n_outputs), "targets must be class numbers below n_outputs");
  }
  return result;
}

// The key scores of a dict of validation samples, if there is one: where each epoch writes their scores.
template <typename T>
T* scores_of(const nb::dict& samples, const Labels<T>& labels, const Loss<T>& loss) {
  return array<T>(samples, "scores", {labels.n_rows, loss.n_outputs}, true);
}

inline bool signal_pending(std::exception_ptr& raised) {
  nb::gil_scoped_acquire locked;
  if (PyErr_CheckSignals() == 0) return false;
  raised = std::make_exception_ptr(nb::python_error());
  return true;
}

// Python runs signal handlers on its main thread only. If that thread works alone, it checks for signals between two
// steps. If it shared the work, it might finish long before the others, so it leaves the work to them and waits.
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

// A dict's own copy, so that its arrays stay alive if the caller replaces them; None stays None.
inline nb::object copy_of(const nb::object& dict) {
  return dict.is_none() ? dict : nb::steal<nb::object>(PyDict_Copy(dict.ptr()));
}

// Members that train until the end of the scope, which must hold the GIL at both ends.
template <typename Class>
class RunningMembers {
 public:
  explicit RunningMembers(const nb::list& members) {
    for (nb::handle member : members) {
      members_.push_back(nb::cast<Class*>(member));
      owners_.push_back(nb::borrow(member));
      trainers.push_back(members_.back()->trainer.get());
    }
    for (const Class* member : members_) {
      const bool is_free = !member->running && std::count(members_.begin(), members_.end(), member) == 1;
      require(is_free, "a member can only run one epoch at a time");
    }
    for (Class* member : members_) member->running = true;
  }
  ~RunningMembers() {
    for (Class* member : members_) member->running = false;
  }
  RunningMembers(const RunningMembers&) = delete;
  RunningMembers& operator=(const RunningMembers&) = delete;

  std::vector<Trainer<typename Class::Number>*> trainers;

 private:
  std::vector<Class*> members_;
  std::vector<nb::object> owners_;
};

template <typename Class>
nb::list run_members(const nb::list& members, std::int64_t epoch, double seconds_left, int n_threads) {
  using T = typename Class::Number;
  require(n_threads >= 1, "n_threads must be positive");
  const RunningMembers<Class> running(members);
  nb::list result;
  for (const EpochOutcome& o : run_interruptibly<T>(running.trainers, epoch, seconds_left, n_threads)) {
    result.append(nb::make_tuple(static_cast<int>(o.status), o.steps_done, o.train_loss, o.validation_loss,
                                 o.mean_reachable_leaves, o.learning_rate, o.gamma, o.seconds, o.validation_metric));
  }
  return result;
}

// (validation loss, validation metric) of the present parameters.
template <typename Class>
nb::tuple evaluate_member(Class& member, int n_threads) {
  require(n_threads >= 1, "n_threads must be positive");
  nb::list alone;
  alone.append(nb::find(member));
  const RunningMembers<Class> running(alone);
  EpochOutcome outcome;
  {
    nb::gil_scoped_release unlocked;
    outcome = running.trainers[0]->evaluate(n_threads);
  }
  return nb::make_tuple(outcome.validation_loss, outcome.validation_metric);
}

// The properties and the epoch of a class of members: it has a `trainer` for numbers of the type `Number`, and a flag
// `running`, which is read and written under the GIL.
template <typename Class>
void bind_protocol(nb::class_<Class>& bound) {
  using namespace nb::literals;
  bound.def_prop_ro("gamma", [](const Class& member) { return member.trainer->gamma(); })
      .def(
          "hold_gamma",
          [](Class& member, double value) {
            require(typename Class::Number(value) > 0, "gamma must be positive");
            member.trainer->hold_gamma(value);
          },
          "value"_a)
      .def_prop_rw(
          "schedule_step", [](const Class& member) { return member.trainer->schedule_step; },
          [](Class& member, std::int64_t step) { member.trainer->schedule_step = step; })
      .def_prop_rw(
          "adam_step", [](const Class& member) { return member.trainer->adam_step; },
          [](Class& member, std::int64_t step) { member.trainer->adam_step = step; })
      .def("evaluate", &evaluate_member<Class>, "n_threads"_a)
      .def_static("run_epoch", &run_members<Class>, "members"_a, "epoch"_a, "seconds_left"_a, "n_threads"_a);
}

}  // namespace softwood::bindings

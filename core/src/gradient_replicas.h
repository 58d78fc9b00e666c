// Gradient rows that several tasks add to at the same time: each task adds to a replica of its own, and the replicas
// are summed in a fixed order.
#pragma once

#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "plan.h"

namespace softwood {

inline constexpr std::int64_t kMinTasks = 4;  // of a backward pass; with fewer groups, blocks are distributed too

// Gradient arrays from the first tree of a group on; `x` is given.
template <typename T>
Gradients<T> gradients_from(const Ensemble<T>& ensemble, Gradients<T> gradients, std::int64_t tree, T* x) {
  const std::int64_t splits = tree * ensemble.n_splits(), leaves = tree * ensemble.n_leaves();
  gradients.x = x;
  if (gradients.split_weight != nullptr) gradients.split_weight += splits * ensemble.n_features;
  if (gradients.split_bias != nullptr) gradients.split_bias += splits;
  if (gradients.split_marked != nullptr) gradients.split_marked += splits;
  if (gradients.leaf_weight != nullptr) gradients.leaf_weight += leaves * ensemble.n_outputs;
  if (gradients.leaf_marked != nullptr) gradients.leaf_marked += leaves;
  return gradients;
}

// Replica 0 is the result itself.
template <typename T>
class GradientReplicas {
 public:
  GradientReplicas(const Ensemble<T>& ensemble, const Plan& plan, const Gradients<T>& result)
      : ensemble_(ensemble), result_(result), copies_(std::size_t(replicas_for(ensemble, plan) - 1)) {
    const std::int64_t splits = ensemble.n_trees * ensemble.n_splits(), leaves = ensemble.n_trees * ensemble.n_leaves();
    for (Copy& copy : copies_) {
      if (result.split_weight != nullptr) copy.split_weight = zeros<T>(splits * ensemble.n_features);
      if (result.split_bias != nullptr) copy.split_bias = zeros<T>(splits);
      if (result.leaf_weight != nullptr) copy.leaf_weight = zeros<T>(leaves * ensemble.n_outputs);
      copy.split_marked = zeros<std::uint8_t>(splits);
      copy.leaf_marked = zeros<std::uint8_t>(leaves);
    }
  }

  std::int64_t count() const { return std::int64_t(copies_.size()) + 1; }

  Gradients<T> replica(std::int64_t index) const {
    if (index == 0) return result_;
    const Copy& copy = copies_[std::size_t(index - 1)];
    return {nullptr,
            copy.split_weight.get(),
            copy.split_bias.get(),
            copy.leaf_weight.get(),
            copy.split_marked.get(),
            copy.leaf_marked.get()};
  }

  // Adds the other replicas to the result, in order.
  void add_up(int n_threads) const {
    if (copies_.empty()) return;
    run_tasks(ensemble_.n_trees, n_threads, [&](std::int64_t tree, Arena&) {
      const Gradients<T> to = gradients_from<T>(ensemble_, result_, tree, nullptr);
      for (std::int64_t i = 1; i < count(); ++i) {
        const Gradients<T> from = gradients_from<T>(ensemble_, replica(i), tree, nullptr);
        add_marked(ensemble_.n_splits(), from.split_marked, to.split_marked, from.split_weight, to.split_weight,
                   ensemble_.n_features);
        add_marked(ensemble_.n_splits(), from.split_marked, to.split_marked, from.split_bias, to.split_bias, 1);
        add_marked(ensemble_.n_leaves(), from.leaf_marked, to.leaf_marked, from.leaf_weight, to.leaf_weight,
                   ensemble_.n_outputs);
      }
    });
  }

 private:
  // Enough tasks for many cores, within a limit of memory.
  static std::int64_t replicas_for(const Ensemble<T>& ensemble, const Plan& plan) {
    const std::int64_t bytes =
        ensemble.n_trees * ensemble.n_leaves() * (ensemble.n_features + ensemble.n_outputs) * std::int64_t(sizeof(T));
    const std::int64_t affordable = 1 + 2 * kPartialBytes / bytes;
    const std::int64_t most = std::min({plan.n_blocks, plan.chunk_blocks, affordable});
    return std::clamp<std::int64_t>(ceil_div(kMinTasks, plan.n_groups), 1, std::max<std::int64_t>(1, most));
  }

  // Zeros from the operating system, which cost memory only where something is written.
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  template <typename U>
  using Array = std::unique_ptr<U[], Free>;
  template <typename U>
  static Array<U> zeros(std::int64_t count) {
    void* memory = std::calloc(std::size_t(count), sizeof(U));
    if (memory == nullptr) throw std::bad_alloc();
    return Array<U>(static_cast<U*>(memory));
  }
  struct Copy {
    Array<T> split_weight, split_bias, leaf_weight;
    Array<std::uint8_t> split_marked, leaf_marked;
  };

  static void add_marked(std::int64_t n_rows, const std::uint8_t* marked, std::uint8_t* to_marked, const T* from, T* to,
                         std::int64_t n_columns) {
    if (to == nullptr) return;
    for (std::int64_t row = 0; row < n_rows; ++row) {
      if (marked[row] == 0) continue;
      to_marked[row] = 1;
      for (std::int64_t c = 0; c < n_columns; ++c) to[row * n_columns + c] += from[row * n_columns + c];
    }
  }

  const Ensemble<T>& ensemble_;
  const Gradients<T>& result_;
  std::vector<Copy> copies_;
};

}  // namespace softwood

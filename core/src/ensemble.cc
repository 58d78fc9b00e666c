// Drivers: divide a call into units (see plan.h), hand them to the thread pool, and sum their results in a fixed order.
#include "softwood/ensemble.h"

#include <algorithm>
#include <vector>

#include "gradient_replicas.h"
#include "plan.h"

namespace softwood {

Arena& thread_scratch() {
  thread_local Arena arena;
  return arena;
}

template <typename T>
struct Tape<T>::Contents {
  struct UnitTape {
    const Frontier<T>* root = nullptr;
    Arena arena;
  };
  TapeKey<T> key;
  std::vector<UnitTape> units;  // [block, group]
};

template <typename T>
Tape<T>::Tape() = default;
template <typename T>
Tape<T>::~Tape() = default;
template <typename T>
Tape<T>::Tape(Tape&&) noexcept = default;
template <typename T>
Tape<T>& Tape<T>::operator=(Tape&&) noexcept = default;

template <typename T>
std::size_t Tape<T>::n_bytes() const {
  std::size_t total = 0;
  if (contents) {
    for (const auto& unit : contents->units) total += unit.arena.n_bytes();
  }
  return total;
}

template <typename T>
const TapeKey<T>* Tape<T>::key() const {
  return contents ? &contents->key : nullptr;
}

template <typename T>
void forward(const Ensemble<T>& ensemble, const Rows<T>& x, bool sum_trees, T* output, Tape<T>* tape, int n_threads) {
  using Contents = typename Tape<T>::Contents;
  const Plan plan = Plan::of(ensemble, x.n_rows, sum_trees);
  const std::int64_t k = ensemble.n_outputs, m = ensemble.n_trees;
  std::unique_ptr<Contents> contents;  // the tape's, once it is complete
  if (tape != nullptr) {
    tape->contents.reset();  // its memory serves the new one
    contents = std::make_unique<Contents>();
    contents->key = TapeKey<T>::of(ensemble, x.n_rows, sum_trees);
    contents->units.resize(std::size_t(plan.n_units()));
  }
  Arena arena;
  ArrangedRows<T> rows(plan, ensemble.n_features, true, arena);
  const GroupSums<T> sums(plan, k, output, arena);
  const bool has_columns = !sum_trees && sums.has_copies();  // trees are columns of the output, not terms of a sum
  for_chunks(plan, [&](std::int64_t first, std::int64_t n_blocks) {
    rows.fill(x, first, n_blocks, n_threads);
    run_tasks(n_blocks * plan.n_groups, n_threads, [&](std::int64_t task, Arena& scratch) {
      const std::int64_t block = first + task / plan.n_groups, group = task % plan.n_groups;
      auto* const unit_tape = contents ? &contents->units[std::size_t(block * plan.n_groups + group)] : nullptr;
      const Frontier<T>* const root =
          kernels<T>().forward(rows.unit(ensemble, group, block), sums.rows(group, first, block), nullptr,
                               unit_tape != nullptr ? &unit_tape->arena : nullptr, scratch);
      if (unit_tape != nullptr) unit_tape->root = root;
    });
    if (!has_columns) return sums.add_up(first, n_blocks, n_threads);
    run_tasks(n_blocks, n_threads, [&](std::int64_t i, Arena&) {
      const std::int64_t block = first + i, row = plan.row_begin(block);
      for (std::int64_t r = 0; r < plan.block_rows(block); ++r) {
        for (std::int64_t tree = 0; tree < m; ++tree) {
          std::copy_n(sums.rows(tree, first, block) + r * k, k, output + ((row + r) * m + tree) * k);
        }
      }
    });
  });
  if (tape != nullptr) tape->contents = std::move(contents);
}

template <typename T>
void backward(const Ensemble<T>& ensemble, const Rows<T>& x, bool sum_trees, const T* grad_output, const Tape<T>* tape,
              const Gradients<T>& gradients, int n_threads) {
  SOFTWOOD_ASSERT(tape == nullptr ||
                  (tape->key() != nullptr && *tape->key() == TapeKey<T>::of(ensemble, x.n_rows, sum_trees)));
  const Plan plan = Plan::of(ensemble, x.n_rows, sum_trees);
  SOFTWOOD_ASSERT(tape == nullptr || std::int64_t(tape->contents->units.size()) == plan.n_units());
  const std::int64_t k = ensemble.n_outputs, grad_stride = sum_trees ? k : ensemble.n_trees * k;
  const GradientReplicas<T> replicas(ensemble, plan, gradients);
  const std::int64_t n_replicas = replicas.count();
  Arena arena;
  ArrangedRows<T> rows(plan, ensemble.n_features, tape == nullptr, arena);
  const GroupSums<T> grad_x(plan, ensemble.n_features, gradients.x, arena);
  for_chunks(plan, [&](std::int64_t first, std::int64_t n_blocks) {
    rows.fill(x, first, n_blocks, n_threads);
    run_tasks(n_replicas * plan.n_groups, n_threads, [&](std::int64_t task, Arena& scratch) {
      const std::int64_t index = task / plan.n_groups, group = task % plan.n_groups;
      const std::int64_t begin = first + index * n_blocks / n_replicas;
      const std::int64_t end = first + (index + 1) * n_blocks / n_replicas;
      for (std::int64_t block = begin; block < end; ++block) {
        const ArenaScope scope(scratch);
        const Unit<T> unit = rows.unit(ensemble, group, block);
        Arena repeated;
        const Frontier<T>* const root = tape == nullptr
                                            ? kernels<T>().forward(unit, nullptr, nullptr, &repeated, scratch)
                                            : tape->contents->units[std::size_t(block * plan.n_groups + group)].root;
        const T* const grad = grad_output + plan.row_begin(block) * grad_stride + (sum_trees ? 0 : group * k);
        kernels<T>().backward(
            unit, root, grad, grad_stride,
            gradients_from(ensemble, replicas.replica(index), plan.tree_begin(group), grad_x.rows(group, first, block)),
            scratch);
      }
    });
    grad_x.add_up(first, n_blocks, n_threads);
  });
  replicas.add_up(n_threads);
}

template <typename T>
void reachability(const Ensemble<T>& ensemble, const Rows<T>& x, std::int32_t* leaves, std::int32_t* internal_nodes,
                  std::int32_t* fractional_nodes, int n_threads) {
  const std::int64_t n = x.n_rows, m = ensemble.n_trees;
  if (ensemble.activation == Activation::logistic) {  // dense by definition, even where probabilities underflow
    std::fill_n(leaves, n * m, std::int32_t(ensemble.n_leaves()));
    std::fill_n(internal_nodes, n * m, std::int32_t(ensemble.n_splits()));
    std::fill_n(fractional_nodes, n * m, std::int32_t(ensemble.n_splits()));
    return;
  }
  for (std::int32_t* counts : {leaves, internal_nodes, fractional_nodes}) std::fill_n(counts, n * m, 0);
  const Plan plan = Plan::of(ensemble, n, true);
  Arena arena;
  ArrangedRows<T> rows(plan, ensemble.n_features, true, arena);
  for_chunks(plan, [&](std::int64_t first, std::int64_t n_blocks) {
    rows.fill(x, first, n_blocks, n_threads);
    run_tasks(n_blocks * plan.n_groups, n_threads, [&](std::int64_t task, Arena& scratch) {
      const std::int64_t block = first + task / plan.n_groups, group = task % plan.n_groups;
      const std::int64_t offset = plan.row_begin(block) * m + plan.tree_begin(group);
      const Counts counts{leaves + offset, internal_nodes + offset, fractional_nodes + offset, m};
      kernels<T>().forward(rows.unit(ensemble, group, block), nullptr, &counts, nullptr, scratch);
    });
  });
}

#define SOFTWOOD_INSTANTIATE(T)                                                                                   \
  template class Tape<T>;                                                                                         \
  template void forward(const Ensemble<T>&, const Rows<T>&, bool, T*, Tape<T>*, int);                             \
  template void backward(const Ensemble<T>&, const Rows<T>&, bool, const T*, const Tape<T>*, const Gradients<T>&, \
                         int);                                                                                    \
  template void reachability(const Ensemble<T>&, const Rows<T>&, std::int32_t*, std::int32_t*, std::int32_t*, int);
SOFTWOOD_INSTANTIATE(float)
SOFTWOOD_INSTANTIATE(double)

}  // namespace softwood

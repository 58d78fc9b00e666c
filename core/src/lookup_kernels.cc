// A training step of one block. Backward: dL/dt_i = S'(t_i) P(i) (e_left - e_right), as in the paper's Algorithm 2, for
// all 15 splits at once; it is added to the two rows of values that the sample read (a histogram over entries). Update:
// gradients of weights are suffix sums over the entries, then Adam.
#include <algorithm>

#include "adam.h"
#include "lookup_forward.h"

namespace softwood::SOFTWOOD_ISA {
namespace {

// Exchanges the lanes of neighbouring groups of kGroup leaves.
template <int kGroup>
struct Swap {
  static constexpr int source(int lane) { return lane ^ kGroup; }
};
// Splits in the order of the leaves between which they stand: those of level 3 in lanes 0, 2, 4, ..., those of level 2
// in lanes 1, 5, 9, 13, those of level 1 in lanes 3 and 11, the root in lane 7. `TakeLevel` takes one level from the
// second operand and the rest from the first; `ToHeap` brings all splits to their lanes in heap order.
template <int kLevel>
struct TakeLevel {
  static constexpr int source(int lane) {
    const int distance = 16 >> kLevel;
    return lane % distance == distance / 2 - 1 ? 16 + lane : lane;
  }
};
struct ToHeap {
  static constexpr int source(int lane) {
    if (lane == 15) return 15;
    int level = 0;
    while (lane >= (2 << level) - 1) ++level;
    const int distance = 16 >> level;
    return (lane - (1 << level) + 1) * distance + distance / 2 - 1;
  }
};

// One step up the tree, with the lanes of leaves: e is dL/d(probability) of what is below, given that the sample is
// there. In lanes on the left of a split, `gap` is its e_left - e_right.
struct Ascent {
  Sixteen gap, e;
};

template <int kGroup>
SOFTWOOD_INLINE Ascent ascend(const Sixteen& step, const Sixteen& e) {
  const Sixteen other = shuffle<Swap<kGroup>>(e);
  const Sixteen gap = e - other;
  return {gap, other + step * gap};
}

SOFTWOOD_INLINE void add(float* to, const Sixteen& v) { store_sixteen(to, load_sixteen(to) + v); }

// Adds dL/dt of some samples to the row of values that each read of one slot.
struct AddInterpolated {
  static SOFTWOOD_INLINE void add_to(const LookupBackward& out, const LookupSlot& slot, const LookupCell& cell,
                                     const Sixteen& grad_t) {
    float* const grad = row_of(out.grad_values, slot.value_row + cell.entry);
    const Sixteen upper = grad_t * cell.fraction;
    add(grad, grad_t - upper);
    add(grad + kBlockLanes, upper);
  }
};
struct AddPlain {
  static SOFTWOOD_INLINE void add_to(const LookupBackward& out, const LookupSlot& slot, const LookupCell& cell,
                                     const Sixteen& grad_t) {
    add(row_of(out.grad_values, slot.value_row + cell.entry), grad_t);
  }
};

template <typename Add>
void add_to_slots(const LookupVisit& visit, const LookupBackward& given, std::int64_t n_active, std::int32_t begin,
                  std::int32_t end) {
  const LookupBlock block = visit.block;  // copies that no store can change
  const LookupBackward out = given;
  for_samples<kSumsAtOnce>(n_active, [&](std::int64_t a, auto n_at_once) __attribute__((always_inline)) {
    constexpr int n = n_at_once;
    const LookupCell* row[n];
    Sixteen grad_t[n];
    for_each<n>([&](int i) __attribute__((always_inline)) {
      const std::int64_t j = out.active[a + i];
      row[i] = visit.cells + sample_of(visit.list, j) * visit.n_columns;
      grad_t[i] = load_sixteen(out.grad_t + j * kBlockLanes);
    });
    for (const LookupSlot* slot = block.slots + begin; slot < block.slots + end; ++slot) {
      for_each<n>([&](int i)
                      __attribute__((always_inline)) { Add::add_to(out, *slot, row[i][slot->column], grad_t[i]); });
    }
  });
}

// The same for a list of all samples, most of which have a gradient.
template <bool kInterpolated>
SOFTWOOD_INLINE void add_fours(const LookupFours& fours, const float* grad_t, float* grad_values) {
  for (std::int64_t i = 0; i < fours.n_fours; ++i) {
    const std::uint32_t* const sample = fours.sample + 4 * i;
    const float* const fraction = fours.fraction + 4 * i;
    float* const grad = row_of(grad_values, fours.entry[i]);
    const Sixteen a = load_sixteen(row_of(grad_t, sample[0])), b = load_sixteen(row_of(grad_t, sample[1])),
                  c = load_sixteen(row_of(grad_t, sample[2])), d = load_sixteen(row_of(grad_t, sample[3]));
    const Sixteen all = (a + b) + (c + d);
    if constexpr (kInterpolated) {
      const Sixteen upper = (a * fraction[0] + b * fraction[1]) + (c * fraction[2] + d * fraction[3]);
      add(grad, all - upper);
      add(grad + kBlockLanes, upper);
    } else {
      add(grad, all);
    }
  }
}

void add_all_to_slots(const LookupBlock& block, const LookupBackward& out, std::int64_t count) {
  store_sixteen(out.grad_t + count * kBlockLanes, Sixteen{});
  for (std::int32_t s = 0; s < block.n_dense; ++s) {
    const LookupSlot& slot = block.slots[s];
    float* const grad_values = row_of(out.grad_values, slot.value_row);
    if (s < block.n_interpolated)
      add_fours<true>(out.fours[slot.column], out.grad_t, grad_values);
    else
      add_fours<false>(out.fours[slot.column], out.grad_t, grad_values);
  }
}

void add_to_lazy_slots(const LookupVisit& visit, const LookupBackward& out, std::int64_t n_active) {
  const LookupBlock& block = visit.block;
  for (std::int32_t s = block.n_dense, lazy = 0; s < block.n_slots; ++s, ++lazy) {
    const LookupSlot& slot = block.slots[s];
    std::int32_t* const touched = out.touched + lazy * out.touched_stride;
    std::int64_t n_touched = 0;
    for (std::int64_t a = 0; a < n_active; ++a) {
      const std::int64_t j = out.active[a];
      const std::uint32_t entry = visit.cells[sample_of(visit.list, j) * visit.n_columns + slot.column].entry;
      const std::uint32_t row = slot.parameter_row + entry;
      add(row_of(out.grad_lazy, row), load_sixteen(out.grad_t + j * kBlockLanes));
      if (out.marked[row] == 0) {
        out.marked[row] = 1;
        touched[n_touched++] = std::int32_t(entry);
      }
    }
    out.n_touched[lazy] = n_touched;
  }
}

// dL/d(probability of each leaf or child) of entry j, and the gradient of leaf weights. kOne: one output, whose
// gradient is kept in a register.
template <bool kLeaves, bool kOne>
SOFTWOOD_INLINE Sixteen grad_probability(const LookupVisit& visit, const LookupBackward& out, std::int64_t j,
                                         const Sixteen& probability, Sixteen& grad_leaf) {
  if constexpr (!kLeaves) return load_sixteen(out.expected + j * kBlockLanes);
  const float* const grad = out.grad_scores + sample_of(visit.list, j) * (kOne ? 1 : visit.n_outputs);
  if constexpr (kOne) {
    grad_leaf += probability * grad[0];
    return load_sixteen(visit.leaf_weight) * grad[0];
  }
  Sixteen result{};
  for (std::int64_t o = 0; o < visit.n_outputs; ++o) {
    result += load_sixteen(visit.leaf_weight + o * kBlockLanes) * grad[o];
    add(out.grad_leaf + o * kBlockLanes, probability * grad[o]);
  }
  return result;
}

// Writes dL/dt of each sample and whether it is 0.
template <typename Act, bool kLeaves, bool kOne>
void grad_split_values(const LookupVisit& given_visit, const LookupBackward& given, Act activation) {
  const LookupVisit visit = given_visit;  // copies that no store can change
  const LookupBackward out = given;
  Sixteen grad_leaf{}, grad_bias{};
  for_samples<kRoutesAtOnce>(visit.list.count, [&](std::int64_t j, auto n_at_once) __attribute__((always_inline)) {
    constexpr int n = n_at_once;
    Steps step[n];
    Sixteen reach1[n], reach2[n], reach3[n];  // probabilities of arriving at the splits of each level
    Ascent to3[n], to2[n], to1[n], to0[n];
    for_each<n>([&](int i) __attribute__((always_inline)) {
      step[i] = steps(sides(activation, load_sixteen(out.t + (j + i) * kBlockLanes)));
    });
    for_each<n>([&](int i) __attribute__((always_inline)) {
      reach1[i] = step[i].first;
      if (visit.list.probability != nullptr) reach1[i] = reach1[i] * visit.list.probability[j + i];
      reach2[i] = reach1[i] * step[i].second;
      reach3[i] = reach2[i] * step[i].third;
      const Sixteen e = grad_probability<kLeaves, kOne>(visit, out, j + i, reach3[i] * step[i].fourth, grad_leaf);
      to3[i] = ascend<1>(step[i].fourth, e);
    });
    for_each<n>([&](int i) __attribute__((always_inline)) { to2[i] = ascend<2>(step[i].third, to3[i].e); });
    for_each<n>([&](int i) __attribute__((always_inline)) { to1[i] = ascend<4>(step[i].second, to2[i].e); });
    for_each<n>([&](int i) __attribute__((always_inline)) { to0[i] = ascend<8>(step[i].first, to1[i].e); });
    for_each<n>([&](int i) __attribute__((always_inline)) {
      if (out.expected_here != nullptr) {
        out.expected_here[out.parent_entry[j + i] * kBlockLanes] = nth_register<0>(to0[i].e)[0];
      }
      Sixteen gap0 = to0[i].gap;
      if (visit.list.probability != nullptr) gap0 = gap0 * visit.list.probability[j + i];
      const Sixteen lower = shuffle<TakeLevel<2>>(reach3[i] * to3[i].gap, reach2[i] * to2[i].gap);
      const Sixteen upper = shuffle<TakeLevel<1>>(lower, reach1[i] * to1[i].gap);
      const Sixteen by_leaves = shuffle<TakeLevel<0>>(upper, gap0);
      const Sixteen slope =
          map([&](auto x) __attribute__((always_inline)) { return activation.slope(absolute<float>(x)); },
              load_sixteen(out.t + (j + i) * kBlockLanes));
      const Sixteen grad_t = slope * shuffle<ToHeap>(by_leaves);
      store_sixteen(out.grad_t + (j + i) * kBlockLanes, grad_t);
      out.is_active[j + i] = nonzero_bits(grad_t) != 0;
      grad_bias += grad_t;
    });
  });
  if constexpr (kOne) add(out.grad_leaf, grad_leaf);
  add(out.grad_values, grad_bias);
}

template <typename Act, bool kLeaves, bool kOne>
void backward_block(const LookupVisit& visit, const LookupBackward& out, const Act& activation) {
  const LookupBlock& block = visit.block;
  grad_split_values<Act, kLeaves, kOne>(visit, out, activation);
  // A sample whose splits are all hard changes none of them.
  std::int64_t n_active = 0;
  for (std::int64_t j = 0; j < visit.list.count; ++j) {
    out.active[n_active] = std::int32_t(j);
    n_active += out.is_active[j];
  }
  if (visit.list.sample == nullptr && 2 * n_active >= visit.list.count) {
    add_all_to_slots(block, out, visit.list.count);
  } else {
    for_each_cached_run(block, [&](std::int32_t begin, std::int32_t end) {
      if (begin < block.n_interpolated)
        add_to_slots<AddInterpolated>(visit, out, n_active, begin, end);
      else
        add_to_slots<AddPlain>(visit, out, n_active, begin, end);
    });
  }
  add_to_lazy_slots(visit, out, n_active);
}

void backward(const LookupVisit& visit, const LookupBackward& out) {
  const FlushSubnormals flushing;
  with_activation(visit.activation, visit.gamma, [&](const auto& activation) {
    using Act = std::decay_t<decltype(activation)>;
    if (visit.leaf_weight == nullptr)
      backward_block<Act, false, false>(visit, out, activation);
    else if (visit.n_outputs == 1)
      backward_block<Act, true, true>(visit, out, activation);
    else
      backward_block<Act, true, false>(visit, out, activation);
  });
}

// The sum of term(begin), ..., term(end - 1), in four parts that do not wait for each other.
template <typename Term>
SOFTWOOD_INLINE Sixteen sum_terms(std::int32_t begin, std::int32_t end, const Term& term) {
  Sixteen a{}, b{}, c{}, d{};
  std::int32_t i = begin;
  for (; i + 4 <= end; i += 4) {
    a += term(i);
    b += term(i + 1);
    c += term(i + 2);
    d += term(i + 3);
  }
  for (; i < end; ++i) a += term(i);
  return (a + b) + (c + d);
}

// V of a column from its weights, by prefix sums; see softwood/lookup.h.
void build_column(const LookupColumn& column, const float* table, float* values) {
  const std::int32_t n_ramps = column.n_ramps(), n_knots = column.n_knots;
  const std::int32_t first_level = column.n_entries - column.n_levels;
  const auto weight = [table](std::int32_t i) __attribute__((always_inline)) {
    return load_sixteen(table + std::int64_t(i) * kBlockLanes);
  };
  const std::int32_t first_weight = n_ramps + (n_knots > 0 ? 1 : 0);  // of the levels
  const Sixteen ramp_centre = sum_terms(0, n_ramps, [&](std::int32_t r) __attribute__((always_inline)) {
    return weight(r) * (column.ramp_scale[r] * column.ramp_mean[r]);
  });
  Sixteen level_centre{};
  if (!column.lazy) {
    level_centre = sum_terms(first_level, column.n_entries, [&](std::int32_t e) __attribute__((always_inline)) {
      return weight(first_weight + e - first_level) * (column.level_scale[e] * column.level_mean[e]);
    });
  }
  const Sixteen linear = n_knots > 0 ? weight(n_ramps) : Sixteen{};
  Sixteen ramps{};
  ramps = ramps - ramp_centre;
  for (std::int32_t e = 0; e < column.n_entries; ++e) {
    Sixteen value{};
    value = value - level_centre;
    if (e < n_knots) {
      value += ramps + linear * column.linear[e];
      if (e < n_ramps) ramps += weight(e) * column.ramp_scale[e];
    }
    if (e >= first_level) value += weight(first_weight + e - first_level) * column.level_scale[e];
    store_sixteen(values + std::int64_t(e) * kBlockLanes, value);
  }
}

// Splits that do not exist always go left.
void build_bias(int n_levels, const float* bias, float* values) {
  const int n_splits = (1 << n_levels) - 1;
  for (int i = 0; i < kBlockLanes; ++i) values[i] = i < n_splits ? bias[i] : float(__builtin_inff());
}

void build(const LookupBlock& block, const float* bias, float* values) {
  const FlushSubnormals flushing;
  build_bias(block.n_levels, bias, values);
  std::uint32_t n_rows = 1;
  for (std::int32_t s = 0; s < block.n_dense; ++s) {
    const LookupSlot& slot = block.slots[s];
    const LookupColumn& column = block.columns[slot.column];
    build_column(column, row_of(block.table, slot.parameter_row), row_of(values, slot.value_row));
    n_rows = std::max(n_rows, slot.value_row + std::uint32_t(column.n_entries));
  }
  store_sixteen(row_of(values, n_rows), Sixteen{});
}

// Adam on elements i, ... of `at`. `kept` is what is left of the average after the steps in which they stood still.
template <int n>
SOFTWOOD_INLINE void update_elements(const AdamStep<float>& step, const Elements<float>& at, std::int64_t i,
                                     const Registers<n>& gradient, float kept) {
  if constexpr (n == 1) {
    const Vector<float> before = load(at.value + i);
    Vector<float> first = load(at.first_moment + i), second = load(at.second_moment + i);
    const Vector<float> value = adam<float>(step, before, gradient.vector, first, second);
    store<float>(at.value + i, value);
    store<float>(at.first_moment + i, first);
    store<float>(at.second_moment + i, second);
    if (at.average == nullptr) return;
    Vector<float> average = load(at.average + i);
    if (kept != 1) average = before + (average - before) * kept;
    store<float>(at.average + i, value + (average - value) * step.average_decay);
  } else {
    update_elements(step, at, i, gradient.low, kept);
    update_elements(step, at, i + n / 2 * kRegisterLanes, gradient.high, kept);
  }
}

SOFTWOOD_INLINE void update_row(const AdamStep<float>& step, const Elements<float>& at, std::int64_t row,
                                const Sixteen& gradient, float kept) {
  update_elements(step, at, row * kBlockLanes, gradient, kept);
}

// What is left of averages that were last written at step `written`, and notes that they are now written up to `step`.
float kept_average(const LookupUpdate& update, std::int64_t* written) {
  if (written == nullptr) return 1;
  const std::int64_t missed = update.step - 1 - *written;
  *written = update.step;
  return missed == 0 ? 1 : float(__builtin_pow(update.average_decay, double(missed)));
}

// One column: gradients of its values [n_entries, 16] to gradients of its weights, and Adam. `at` begins at its
// weights.
void update_column(const LookupColumn& column, const AdamStep<float>& step, const Elements<float>& at,
                   float* grad_values, float kept) {
  const std::int32_t n_ramps = column.n_ramps(), n_knots = column.n_knots;
  const auto grad = [grad_values](std::int32_t e) __attribute__((always_inline)) {
    return load_sixteen(grad_values + std::int64_t(e) * kBlockLanes);
  };
  const Sixteen of_knots = sum_terms(0, n_knots, grad);
  const Sixteen linear =
      sum_terms(0, n_knots, [&](std::int32_t e) __attribute__((always_inline)) { return grad(e) * column.linear[e]; });
  // Rows are updated from the last to the first, which hardware does not predict: those of the next column are
  // prefetched.
  const std::int64_t ahead = std::int64_t(column.n_parameters()) * kBlockLanes;
  Sixteen suffix = n_knots > 0 ? grad(n_knots - 1) : Sixteen{};
  for (std::int32_t r = n_ramps - 1; r >= 0; --r) {
    const std::int64_t next = ahead + std::int64_t(r) * kBlockLanes;
    __builtin_prefetch(at.value + next, 1);
    __builtin_prefetch(at.first_moment + next, 1);
    __builtin_prefetch(at.second_moment + next, 1);
    update_row(step, at, r, (suffix - of_knots * column.ramp_mean[r]) * column.ramp_scale[r], kept);
    suffix += grad(r);
  }
  if (n_knots > 0) update_row(step, at, n_ramps, linear, kept);
  if (column.n_levels == 0) return;
  const std::int32_t first_level = column.n_entries - column.n_levels, first_row = n_ramps + (n_knots > 0 ? 1 : 0);
  const Sixteen all = of_knots + sum_terms(n_knots, column.n_entries, grad);
  for (std::int32_t e = first_level; e < column.n_entries; ++e) {
    update_row(step, at, first_row + e - first_level, (grad(e) - all * column.level_mean[e]) * column.level_scale[e],
               kept);
  }
}

// Only the levels that got a gradient.
void update_lazy_column(const LookupUpdate& update, const LookupColumn& column, const LookupSlot& slot,
                        const std::int32_t* touched, std::int64_t n_touched) {
  const LookupBackward& gradients = *update.backward;
  for (std::int64_t i = 0; i < n_touched; ++i) {
    const std::int64_t row = slot.parameter_row + touched[i];
    float* const grad = gradients.grad_lazy + row * kBlockLanes;
    const float kept = kept_average(update, update.table_written != nullptr ? update.table_written + row : nullptr);
    update_row(update.table_step, update.table, row, load_sixteen(grad) * column.level_scale[touched[i]], kept);
    store_sixteen(grad, Sixteen{});
    gradients.marked[row] = 0;
  }
}

void update(const LookupBlock& block, const LookupUpdate& update) {
  const FlushSubnormals flushing;
  const LookupBackward& gradients = *update.backward;
  const float kept = kept_average(update, update.bias_written);
  update_row(update.bias_step, update.bias, 0, load_sixteen(gradients.grad_values), kept);
  for (std::int32_t s = 0; s < block.n_dense; ++s) {
    const LookupSlot& slot = block.slots[s];
    const LookupColumn& column = block.columns[slot.column];
    const Elements<float> at = update.table.from(std::int64_t(slot.parameter_row) * kBlockLanes);
    update_column(column, update.table_step, at, gradients.grad_values + std::int64_t(slot.value_row) * kBlockLanes,
                  kept);
    if (update.table_written != nullptr) {
      for (std::int32_t i = 0; i < column.n_parameters(); ++i) {
        update.table_written[slot.parameter_row + i] = update.step;
      }
    }
  }
  for (std::int32_t s = block.n_dense, lazy = 0; s < block.n_slots; ++s, ++lazy) {
    const LookupSlot& slot = block.slots[s];
    update_lazy_column(update, block.columns[slot.column], slot, gradients.touched + lazy * gradients.touched_stride,
                       gradients.n_touched[lazy]);
    gradients.n_touched[lazy] = 0;
  }
  for (std::int64_t i = 0; i < update.n_value_rows; ++i)
    store_sixteen(gradients.grad_values + i * kBlockLanes, Sixteen{});
  if (update.leaf.value == nullptr) return;
  const float kept_of_leaf = kept_average(update, update.leaf_written);
  for (std::int64_t o = 0; o < update.n_outputs; ++o) {
    float* const grad = gradients.grad_leaf + o * kBlockLanes;
    update_row(update.leaf_step, update.leaf, o, load_sixteen(grad), kept_of_leaf);
    store_sixteen(grad, Sixteen{});
  }
}

}  // namespace

extern const LookupTrainingKernels lookup_training_kernels = {kForwardKernels, &backward,   &update,
                                                              &build,          &build_bias, &build_column};

}  // namespace softwood::SOFTWOOD_ISA

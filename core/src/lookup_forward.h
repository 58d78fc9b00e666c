// The forward pass over one block of lookup trees in training. All names are local to the including file.
#pragma once

#include "block_routing.h"
#include "lookup_kernels.h"

namespace softwood::SOFTWOOD_ISA {
namespace {

// Row `row` of rows of 16. Unsigned numbers of 32 bits need no instruction to become an address.
template <typename T>
SOFTWOOD_INLINE T* row_of(T* rows, std::uint32_t row) {
  return rows + std::size_t(row) * kBlockLanes;
}

// Rows of values that stay in the first-level cache while sample after sample reads them.
constexpr std::int64_t kCachedRows = 384;

// Calls body(begin, end) for runs of the slots that are not lazy: of one kind, and with few rows of values.
template <typename Body>
SOFTWOOD_INLINE void for_each_cached_run(const LookupBlock& block, const Body& body) {
  for (std::int32_t begin = 0, end; begin < block.n_dense; begin = end) {
    const std::int32_t kind_end = begin < block.n_interpolated ? block.n_interpolated : block.n_dense;
    std::int64_t n_rows = 0;
    for (end = begin; end < kind_end; ++end) {
      n_rows += block.columns[block.slots[end].column].n_entries;
      if (n_rows > kCachedRows && end > begin) break;
    }
    body(begin, end);
  }
}

// Calls body(j, n) with n = kAtOnce samples j, j + 1, ... at a time, then with what is left one by one. A processor
// looks ahead over less than two samples' instructions, so the chains of several samples are interleaved in the code.
template <int kAtOnce, typename Body>
SOFTWOOD_INLINE void for_samples(std::int64_t count, const Body& body) {
  std::int64_t j = 0;
  for (; j + kAtOnce <= count; j += kAtOnce) body(j, std::integral_constant<int, kAtOnce>{});
  for (; j < count; ++j) body(j, std::integral_constant<int, 1>{});
}
constexpr int kSumsAtOnce = kSixteenRegisters == 4 ? 2 : 4;  // as many as there are registers for
constexpr int kRoutesAtOnce = kSixteenRegisters == 1 ? 2 : 1;

// Calls body(0), ..., body(n - 1), unrolled.
template <int n, typename Body>
SOFTWOOD_INLINE void for_each(const Body& body) {
  [&]<int... i>(std::integer_sequence<int, i...>)
      __attribute__((always_inline)) { (body(i), ...); }(std::make_integer_sequence<int, n>{});
}

SOFTWOOD_INLINE std::int64_t sample_of(const LookupList& list, std::int64_t j) {
  return list.sample != nullptr ? list.sample[j] : j;
}

// What a slot adds to the split values t of some samples, of whose cells it reads one each.
struct ReadInterpolated {
  static SOFTWOOD_INLINE void add(const LookupBlock& block, const LookupSlot& slot, const LookupCell& cell,
                                  Sixteen& t) {
    const float* const value = row_of(block.values, slot.value_row + cell.entry);
    const Sixteen low = load_sixteen(value);
    t += low;
    t += (load_sixteen(value + kBlockLanes) - low) * cell.fraction;
  }
};
struct ReadPlain {
  static SOFTWOOD_INLINE void add(const LookupBlock& block, const LookupSlot& slot, const LookupCell& cell,
                                  Sixteen& t) {
    t += load_sixteen(row_of(block.values, slot.value_row + cell.entry));
  }
};
struct ReadLazy {
  static SOFTWOOD_INLINE void add(const LookupBlock& block, const LookupSlot& slot, const LookupCell& cell,
                                  Sixteen& t) {
    const float scale = block.columns[slot.column].level_scale[cell.entry];
    t += load_sixteen(row_of(block.table, slot.parameter_row + cell.entry)) * scale;
  }
};

// t = `before` + what slots begin, ..., end - 1 add, for all samples of the list; sample j's row of `before` is at j
// times `stride`.
template <typename Read>
void add_slots(const LookupVisit& visit, std::int32_t begin, std::int32_t end, const float* before, std::int64_t stride,
               float* t) {
  const LookupBlock block = visit.block;  // a copy that no store can change
  for_samples<kSumsAtOnce>(visit.list.count, [&](std::int64_t j, auto n_at_once) __attribute__((always_inline)) {
    constexpr int n = n_at_once;
    const LookupCell* row[n];
    Sixteen sum[n];
    for_each<n>([&](int i) __attribute__((always_inline)) {
      row[i] = visit.cells + sample_of(visit.list, j + i) * visit.n_columns;
      sum[i] = load_sixteen(before + (j + i) * stride);
    });
    for (const LookupSlot* slot = block.slots + begin; slot < block.slots + end; ++slot) {
      for_each<n>([&](int i) __attribute__((always_inline)) { Read::add(block, *slot, row[i][slot->column], sum[i]); });
    }
    for_each<n>([&](int i) __attribute__((always_inline)) { store_sixteen(t + (j + i) * kBlockLanes, sum[i]); });
  });
}

// Split values of all samples of the list. Each is a sum in the order of slots, beginning with the bias.
void split_values(const LookupVisit& visit, float* t) {
  const LookupBlock& block = visit.block;
  const float* before = block.values;  // the bias
  std::int64_t stride = 0;
  const auto add = [&](auto read, std::int32_t begin, std::int32_t end) {
    add_slots<decltype(read)>(visit, begin, end, before, stride, t);
    before = t;
    stride = kBlockLanes;
  };
  for_each_cached_run(block, [&](std::int32_t begin, std::int32_t end) {
    if (begin < block.n_interpolated)
      add(ReadInterpolated{}, begin, end);
    else
      add(ReadPlain{}, begin, end);
  });
  if (block.n_dense < block.n_slots) add(ReadLazy{}, block.n_dense, block.n_slots);
}

template <typename Act, bool kLeaves>
void forward_block(const LookupVisit& given, const LookupForward& out, Act activation) {
  split_values(given, out.t);
  const LookupVisit visit = given;
  const std::int64_t k = visit.n_outputs;
  for_samples<kRoutesAtOnce>(visit.list.count, [&](std::int64_t j, auto n_at_once) __attribute__((always_inline)) {
    constexpr int n = n_at_once;
    Sixteen probability[n];
    for_each<n>([&](int i) __attribute__((always_inline)) {
      const Steps step = steps(sides(activation, load_sixteen(out.t + (j + i) * kBlockLanes)));
      probability[i] = (step.first * step.second) * (step.third * step.fourth);
      if (visit.list.probability != nullptr) probability[i] = probability[i] * visit.list.probability[j + i];
    });
    for_each<n>([&](int i) __attribute__((always_inline)) {
      if constexpr (kLeaves) {
        const std::int64_t sample = sample_of(visit.list, j + i);
        float* const score = out.scores + sample * k * kBlockLanes;
        for (std::int64_t o = 0; o < k * kBlockLanes; o += kBlockLanes) {
          store_sixteen(score + o, load_sixteen(score + o) + probability[i] * load_sixteen(visit.leaf_weight + o));
        }
        if (out.leaves != nullptr) out.leaves[sample] += count_bits(nonzero_bits(probability[i]));
      } else {
        store_sixteen(out.child_probability + (j + i) * kBlockLanes, probability[i]);
        out.reached[j + i] = std::uint16_t(nonzero_bits(probability[i]));
      }
    });
  });
}

void forward(const LookupVisit& visit, const LookupForward& out) {
  const FlushSubnormals flushing;
  with_activation(visit.activation, visit.gamma, [&](const auto& activation) {
    if (visit.leaf_weight != nullptr)
      forward_block<std::decay_t<decltype(activation)>, true>(visit, out, activation);
    else
      forward_block<std::decay_t<decltype(activation)>, false>(visit, out, activation);
  });
}

void sum_all_lanes(const float* lanes, std::int64_t n, float* sums) {
  for (std::int64_t i = 0; i < n; ++i) sums[i] = sum_lanes(lanes + i * kBlockLanes);
}

constexpr LookupKernels kForwardKernels = {&forward, &sum_all_lanes};

}  // namespace
}  // namespace softwood::SOFTWOOD_ISA

// What the drivers in ensemble.cc call: both passes for one unit of work, a group of trees on a block of samples. The
// kernels use no threads. kernels.cc implements them once per instruction set; docs/kernels.md has drawings.
//
// Inside a unit, a node of level l is identified by its `code` = (tree in the group) * 2^l + (index in the level). The
// children of code c are 2c and 2c + 1 of the next level, so a range of codes is either a set of whole trees or a part
// of one.
#pragma once

#include <cstdint>
#include <type_traits>

#include "arena.h"
#include "dispatch.h"
#include "softwood/ensemble.h"

namespace softwood {

// A code and a sample of the block are packed into one integer, code << kSampleBits | sample, which limits both.
inline constexpr int kSampleBits = 8;
inline constexpr std::int64_t kMaxSamples = 1 << kSampleBits;        // of a unit
inline constexpr std::int64_t kMaxLeaves = 1 << (31 - kSampleBits);  // of all trees of a unit

// The (node, sample) pairs of one level that are reached: entry j says that the sample of `pair[j]` arrives at the node
// of `pair[j]` with `probability[j]`. The arrays are padded by one vector of entries with probability 0.
template <typename T>
struct List {
  // As wide as T, so that one vector permutation applies to both arrays.
  using Integer = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;
  std::int64_t count;
  bool grouped;  // the entries of one node are adjacent
  Integer* pair;
  T* probability;
  T* t;  // split values; null at the leaves
  // The level below; null at the leaves. If `next` is grouped (made by `partition`), its first `n_left` entries are the
  // left children and the others the right children, both in the order of their parents. Otherwise (made by `branch`)
  // entry j of `next` is the more likely child of entry j; the less likely children that are reached follow, from the
  // last vector of parents to the first.
  List* next;
  std::int64_t n_left;
};

// A range of nodes of one level on all samples of the block, and how the forward pass continued below it. The tape of a
// unit is a tree of frontiers.
template <typename T>
struct Frontier {
  enum class Fate {
    expanded,  // dense: split values of all nodes and samples in `t`; continues at `first`, one level below
    halved,    // too large for the cache: continues as two halves of the same level, `first` and `second`
    listed,    // few of the pairs are reached: continues as `list`
    leaves,    // the last level
  };
  int level;
  std::int64_t code_begin, n_codes;
  Fate fate = Fate::leaves;
  T* t = nullptr;  // [n_codes, padded samples]
  Frontier* first = nullptr;
  Frontier* second = nullptr;
  List<T>* list = nullptr;
};

// One unit of work.
template <typename T>
struct Unit {
  Ensemble<T> ensemble;  // of the group: its pointers are those of the group's first tree
  Rows<T> x;             // of the block, as Kernels::arrange wrote it
  const T* x_panels;     // likewise; only the forward pass reads it
};

// Numbers of reached nodes of one unit; element (sample, tree) is at sample * stride + tree.
struct Counts {
  std::int32_t* leaves;
  std::int32_t* internal_nodes;
  std::int32_t* fractional_nodes;
  std::int64_t stride;
};

template <typename T>
struct Kernels {
  const char* name;
  int lanes;       // features are padded to a multiple of this
  int panel_rows;  // samples are padded to a multiple of this

  // Copies x in the two layouts that the passes read, padded with zeros: as rows [n, padded features], aligned, so that
  // vectors do not cross cache lines; and, unless `panels` is null, as panels [padded samples / panel_rows, p,
  // panel_rows], in which the samples of a panel are adjacent.
  void (*arrange)(const Rows<T>& x, std::int64_t n_features, T* rows, T* panels);

  // Writes the output of the group [n, k] (null: not needed) and returns the root of the tape. If `keep` is not null,
  // the tape is allocated there and outlives the call; otherwise each part of it is released as soon as possible, and
  // null is returned. Adds to `counts` unless it is null.
  const Frontier<T>* (*forward)(const Unit<T>& unit, T* output, const Counts* counts, Arena* keep, Arena& scratch);

  // Adds the gradients of the unit; those of x are written to rows `gradients.x + i * p`. The pointers are those of the
  // group's first tree. The output gradient of sample i is at grad_output + i * grad_stride.
  void (*backward)(const Unit<T>& unit, const Frontier<T>* tape, const T* grad_output, std::int64_t grad_stride,
                   const Gradients<T>& gradients, Arena& scratch);
};

// kernels<T>() gives those for this machine.
SOFTWOOD_DECLARE_TABLES(Kernels, kernels)

}  // namespace softwood

// What the drivers in ensemble.cc call: both passes for one unit of work, a group of trees on a block of samples. There
// are no threads below this line. kernels.cc implements it once per instruction set.
//
// Inside a unit, a node of level l is named by its `code` = (tree in the group) * 2^l + (place in the level): children
// of code c are 2c and 2c + 1 of the next level, so that a range of codes is at once a set of whole trees or a part of
// one.
#pragma once

#include <cstdint>
#include <type_traits>

#include "arena.h"
#include "softwood/ensemble.h"

namespace softwood {

// A code and a sample of the block share one integer, code << kSampleBits | sample, which limits both.
inline constexpr int kSampleBits = 8;
inline constexpr std::int64_t kMostSamples = 1 << kSampleBits;        // of a unit
inline constexpr std::int64_t kMostLeaves = 1 << (31 - kSampleBits);  // of a unit's trees together

// Samples that reach some nodes of one level: entry j says that the sample of `pair[j]` arrives at the node of
// `pair[j]` with `probability[j]`. Arrays have room, and harmless values, for one vector past `count`.
template <typename T>
struct List {
  // As wide as T, so that one vector permutation serves both arrays.
  using Integer = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;
  std::int64_t count;
  bool grouped;  // entries of one node are neighbours
  Integer* pair;
  T* probability;
  T* t;  // split values; null at the leaves
  // The level below; null at the leaves. If it is grouped, the first `n_left` entries are the left children, and the
  // right ones follow, in the order of their parents. If not, the likelier child of entry j is entry j of `next`; the
  // other children, where there are any, come after all of those, from the last vector of parents to the first.
  List* next;
  std::int64_t n_left;
};

// A range of nodes of one level on all samples of the block, and what became of it on the way down: the tape.
template <typename T>
struct Frontier {
  enum class Fate {
    expanded,  // dense: split values of all nodes and samples in `t`; goes on at `first`
    halved,    // too large for the cache: two ranges of half the codes, `first` and `second`
    listed,    // few samples arrive at each node: goes on as `list`
    leaves,    // the bottom
  };
  int level;
  std::int64_t code_begin, n_codes;
  Fate fate = Fate::leaves;
  T* t = nullptr;  // [n_codes, padded samples]
  Frontier* first = nullptr;
  Frontier* second = nullptr;
  List<T>* list = nullptr;
};

// One unit of work. Pointers of the ensemble are those of the group's first tree.
template <typename T>
struct Unit {
  Ensemble<T> ensemble;  // of the group
  Rows<T> x;             // of the block, as Kernels::arrange made it
  const T* x_tiles;      // likewise; only the forward pass reads it
};

// Where the reached nodes of one unit are counted; element (i, tree) is at i * stride + tree.
struct Counts {
  std::int32_t* leaves;
  std::int32_t* internal_nodes;
  std::int32_t* fractional_nodes;
  std::int64_t stride;
};

template <typename T>
struct Kernels {
  const char* name;
  int lanes;      // features are padded to a multiple of this
  int tile_rows;  // samples are padded to a multiple of this

  // Copies x as the passes read it, padded with zeros: by rows [n, padded features], aligned, so that vectors do not
  // straddle cache lines, and as tiles [padded samples / tile_rows, p, tile_rows], unless that is null.
  void (*arrange)(const Rows<T>& x, std::int64_t n_features, T* rows, T* tiles);

  // Writes the group's output [rows, k] (null: not wanted) and returns the tape's root. With `keep` set the tape is
  // allocated there and outlives the call; else it lives in `scratch` only as long as it is needed, and null is
  // returned. `counts`, if not null, is added to.
  const Frontier<T>* (*forward)(const Unit<T>& unit, T* output, const Counts* counts, Arena* keep, Arena& scratch);

  // Adds the unit's gradients; those of x are written to rows `gradients.x + i * p`. Pointers are those of the group's
  // first tree. Sample i's output gradient is at grad_output + i * grad_stride.
  void (*backward)(const Unit<T>& unit, const Frontier<T>* tape, const T* grad_output, std::int64_t grad_stride,
                   const Gradients<T>& gradients, Arena& scratch);
};

// The kernels for this machine.
template <typename T>
const Kernels<T>& kernels();
template <>
const Kernels<float>& kernels<float>();
template <>
const Kernels<double>& kernels<double>();

namespace baseline {
extern const Kernels<float> kernels_float;
extern const Kernels<double> kernels_double;
}  // namespace baseline
#if defined(__x86_64__)
namespace avx2 {
extern const Kernels<float> kernels_float;
extern const Kernels<double> kernels_double;
}  // namespace avx2
namespace avx512 {
extern const Kernels<float> kernels_float;
extern const Kernels<double> kernels_double;
}  // namespace avx512
#endif

// All of them, from the narrowest to the widest.
inline constexpr const Kernels<float>* kKernelsFloat[] = {
    &baseline::kernels_float,
#if defined(__x86_64__)
    &avx2::kernels_float,
    &avx512::kernels_float,
#endif
};
inline constexpr const Kernels<double>* kKernelsDouble[] = {
    &baseline::kernels_double,
#if defined(__x86_64__)
    &avx2::kernels_double,
    &avx512::kernels_double,
#endif
};

}  // namespace softwood

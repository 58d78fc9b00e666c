// The tree ensemble layer on plain arrays: forward, backward and reachability of a whole ensemble in one call.
//
// Legend: n samples, p features, k outputs, m trees, d depth. A tree is perfect, with 2^d - 1 internal nodes and
// 2^d leaves in heap order (children of node i are 2i+1 and 2i+2). A sample with t = <w_i, x> + b_i goes left with
// probability S(t) and right with 1 - S(t).
//
// Every array is C-contiguous but for the rows of x, which may be `row_stride` elements apart, and is owned by the
// caller. Results are bit-identical for every number of threads: work is cut into blocks by shape alone, and each sum
// is taken in a fixed order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace softwood {

inline constexpr int kMaxDepth = 20;

enum class Activation : int { smooth_step = 0, smoother_step = 1, logistic = 2 };

// A read-only view of an ensemble's parameters.
template <typename T>
struct Ensemble {
  const T* split_weight;    // [m, 2^d - 1, p]
  const T* split_bias;      // [m, 2^d - 1], or null
  const T* leaf_weight;     // [m, 2^d, k], or null where only routing is asked for
  std::int64_t n_trees;     // m >= 1
  std::int64_t n_features;  // p >= 1
  std::int64_t n_outputs;   // k >= 1
  int depth;                // 1 to kMaxDepth
  Activation activation;
  T gamma;  // width of the soft band, or the logistic's temperature; > 0

  std::int64_t n_splits() const { return (std::int64_t{1} << depth) - 1; }
  std::int64_t n_leaves() const { return std::int64_t{1} << depth; }
};

// A read-only view of a batch; the features of one row are contiguous.
template <typename T>
struct Rows {
  const T* data;
  std::int64_t n_rows;
  std::int64_t row_stride;
  const T* row(std::int64_t i) const { return data + i * row_stride; }
};

// What one forward pass found, for one backward pass over the same arrays. Owns its memory and returns it to a shared
// pool when it is destroyed. Immutable once filled, so several threads may read it.
template <typename T>
class Tape {
 public:
  Tape();
  ~Tape();
  Tape(Tape&&) noexcept;
  Tape& operator=(Tape&&) noexcept;
  std::size_t n_bytes() const;

  struct Contents;
  std::unique_ptr<Contents> contents;
};

// Where a backward pass adds its gradients. All rows are zero on entry (see marked_rows.h). A null array skips the work
// for it. A split's row is marked when some sample is fractional there, a leaf's when some sample reaches it; rows not
// marked are neither read nor written.
template <typename T>
struct Gradients {
  T* x;                        // [n, p], or null; overwritten, not added to
  T* split_weight;             // [m, 2^d - 1, p], or null
  T* split_bias;               // [m, 2^d - 1], or null
  T* leaf_weight;              // [m, 2^d, k], or null
  std::uint8_t* split_marked;  // [m, 2^d - 1]; needed with split_weight or split_bias
  std::uint8_t* leaf_marked;   // [m, 2^d]; needed with leaf_weight
};

// Algorithm 1 of the paper. `output` is [n, k] if `sum_trees`, else [n, m, k]. `tape` may be null.
// `n_threads` >= 1 is an upper bound on the threads used, this one included.
template <typename T>
void forward(const Ensemble<T>& ensemble, const Rows<T>& x, bool sum_trees, T* output, Tape<T>* tape, int n_threads);

// Algorithm 2 of the paper in its division-free form. `grad_output` has the shape of the output. With a null tape the
// traversal is repeated.
template <typename T>
void backward(const Ensemble<T>& ensemble, const Rows<T>& x, bool sum_trees, const T* grad_output, const Tape<T>* tape,
              const Gradients<T>& gradients, int n_threads);

// How many leaves, internal nodes and fractional internal nodes (0 < S < 1) each sample reaches in each tree; [n, m]
// each.
template <typename T>
void reachability(const Ensemble<T>& ensemble, const Rows<T>& x, std::int32_t* leaves, std::int32_t* internal_nodes,
                  std::int32_t* fractional_nodes, int n_threads);

// "baseline", "avx2" or "avx512" on x86-64, "baseline" elsewhere: the kernels in use, chosen once by what the CPU has,
// or lower if the environment variable SOFTWOOD_ISA says so.
const char* instruction_set();

}  // namespace softwood

// The tree ensemble layer on plain arrays: forward, backward and reachability of a whole ensemble in one call.
// docs/kernels.md explains how it is computed.
//
// Legend: n samples, p features, k outputs, m trees, d depth. A tree is perfect, with 2^d - 1 internal nodes and
// 2^d leaves in heap order (children of node i are 2i+1 and 2i+2). A sample with t = <w_i, x> + b_i goes left with
// probability S(t) and right with 1 - S(t).
//
// Every array is C-contiguous, except that the rows of x may be `row_stride` elements apart, and is owned by the
// caller. Results are bit-identical for every number of threads: the work is divided by shape alone, and each sum is
// taken in a fixed order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>

namespace softwood {

inline constexpr int kMaxDepth = 20;

// The number of an activation is its code in every interface; kActivationNames lists the names by code.
enum class Activation : int { smooth_step = 0, smoother_step = 1, logistic = 2 };
inline constexpr const char* kActivationNames[] = {"smooth_step", "smoother_step", "logistic"};
inline constexpr int kActivations = int(std::size(kActivationNames));

// A read-only view of an ensemble's parameters.
template <typename T>
struct Ensemble {
  const T* split_weight;    // [m, 2^d - 1, p]
  const T* split_bias;      // [m, 2^d - 1], or null
  const T* leaf_weight;     // [m, 2^d, k], or null where only routing is needed
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

// What a tape depends on besides the values of the arrays. A backward pass with another key would read past the memory
// of the tape: it repeats the routing and expects to find what the forward pass found.
template <typename T>
struct TapeKey {
  std::int64_t n_rows, n_trees;
  int depth;
  Activation activation;
  T gamma;
  bool sum_trees;

  static TapeKey of(const Ensemble<T>& ensemble, std::int64_t n_rows, bool sum_trees) {
    return {n_rows, ensemble.n_trees, ensemble.depth, ensemble.activation, ensemble.gamma, sum_trees};
  }
  bool operator==(const TapeKey&) const = default;
};

// What one forward pass found, for backward passes over the same arrays. Owns its memory and returns it to a shared
// pool when it is destroyed. Once filled it is only read, so several threads may use it.
template <typename T>
class Tape {
 public:
  Tape();
  ~Tape();
  Tape(Tape&&) noexcept;
  Tape& operator=(Tape&&) noexcept;
  std::size_t n_bytes() const;
  const TapeKey<T>* key() const;  // null: no forward pass has completed

  struct Contents;
  std::unique_ptr<Contents> contents;
};

// Where a backward pass adds its gradients. All rows are zero on entry (see marked_rows.h). The work for a null array
// is skipped. The row of a split is marked if some sample is fractional there, that of a leaf if some sample reaches
// it; rows without a mark are neither read nor written.
template <typename T>
struct Gradients {
  T* x;                        // [n, p], or null; overwritten, not added to
  T* split_weight;             // [m, 2^d - 1, p], or null
  T* split_bias;               // [m, 2^d - 1], or null
  T* leaf_weight;              // [m, 2^d, k], or null
  std::uint8_t* split_marked;  // [m, 2^d - 1], 0 or 1; needed with split_weight or split_bias
  std::uint8_t* leaf_marked;   // [m, 2^d], 0 or 1; needed with leaf_weight
};

// Algorithm 1 of the paper. `output` is [n, k] if `sum_trees`, else [n, m, k]. `tape` may be null; if the call throws,
// the tape is empty. `n_threads` >= 1 is an upper bound on the threads used, including the calling thread.
template <typename T>
void forward(const Ensemble<T>& ensemble, const Rows<T>& x, bool sum_trees, T* output, Tape<T>* tape, int n_threads);

// Algorithm 2 of the paper in its division-free form. `grad_output` has the shape of the output. The key of the tape
// must be that of this call; without a tape (null) the forward pass is repeated.
template <typename T>
void backward(const Ensemble<T>& ensemble, const Rows<T>& x, bool sum_trees, const T* grad_output, const Tape<T>* tape,
              const Gradients<T>& gradients, int n_threads);

// How many leaves, internal nodes and fractional internal nodes (0 < S < 1) each sample reaches in each tree; [n, m]
// each.
template <typename T>
void reachability(const Ensemble<T>& ensemble, const Rows<T>& x, std::int32_t* leaves, std::int32_t* internal_nodes,
                  std::int32_t* fractional_nodes, int n_threads);

// The kernels in use: "baseline", "avx2" or "avx512" on x86-64, "baseline" elsewhere. Chosen once, as the widest that
// the CPU supports, or a narrower one named by the environment variable SOFTWOOD_ISA.
const char* instruction_set();

}  // namespace softwood

// Algorithm 1 of the paper for a block of rows and all trees at once. A node that many rows of the block reach is
// computed for all rows, depth first: the lanes are rows. If few rows are left, they become a list of (node, row)
// pairs, which is followed level by level for all trees together: the lanes are pairs. A single row is a list from the
// start. Unlike in the kernels of training, the order of each sum is the same on every machine and for both forms, so
// this file is compiled without contraction of multiplications and additions.
#include "predictor_kernels.h"

#include <utility>

#include "activation.h"
#include "debug.h"

namespace softwood::SOFTWOOD_ISA {
namespace {

constexpr int W = kLanes<float>;
// A node that at least one in kDenseFactor rows of the block reaches is computed for all rows, which is faster by that
// factor.
constexpr std::int64_t kDenseFactor = 2;
// Pairs that are followed from one level to the next at a time.
constexpr std::int64_t kBatch = 512;
static_assert(2 * kBatch <= kMaxWaiting && kMaxRows <= kBatch && kMaxRows == 1 << kRowBits);
using Floats = Vector<float>;
using Ints = Integers<float>;

// The width of a split, if possible as a constant: short rows are then computed without a loop.
template <int kFixed>
SOFTWOOD_INLINE std::int64_t known(std::int64_t width) {
  return kFixed > 0 ? kFixed * kPartialSums : width;
}

// In every part, the values of `a` (0 to 3) and `b` (4 to 7) with the given indices.
template <int... kNamed, int... kLane>
SOFTWOOD_INLINE Floats pick(Floats a, Floats b, std::integer_sequence<int, kLane...>) {
  constexpr int named[] = {kNamed...};
  constexpr auto source = [](int lane) {
    const int from = named[lane % 4], part = lane / 4 * 4;
    return from < 4 ? part + from : W + part + from - 4;
  };
  return __builtin_shufflevector(a, b, source(kLane)...);
}

// In every part, (v0 + v2) + (v1 + v3) of each of the four vectors.
SOFTWOOD_INLINE Floats sum_quads(const Floats (&v)[4]) {
  constexpr auto lanes = std::make_integer_sequence<int, W>{};
  const Floats front = pick<0, 1, 4, 5>(v[0], v[1], lanes) + pick<2, 3, 6, 7>(v[0], v[1], lanes);
  const Floats back = pick<0, 1, 4, 5>(v[2], v[3], lanes) + pick<2, 3, 6, 7>(v[2], v[3], lanes);
  return pick<0, 2, 4, 6>(front, back, lanes) + pick<1, 3, 5, 7>(front, back, lanes);
}

// W partial sums of a dot product.
SOFTWOOD_INLINE Floats partial_sums(const float* w, const float* x, std::int64_t width) {
  Floats sums = load(w) * load(x);
#pragma GCC unroll 4
  for (std::int64_t f = kPartialSums; f < width; f += kPartialSums) sums += load(w + f) * load(x + f);
  return sums;
}

// Split values of W pairs, given the offsets of their rows of w and of x. Partial sums are added in the order that
// softwood/predictor.h defines: first those at a distance of four, ...
template <bool kOneRow>
SOFTWOOD_INLINE Floats pair_split_values(const float* w, const float* x, const std::int32_t* w_offset,
                                         const std::int32_t* x_offset, std::int64_t width) {
  const auto sums = [&](int j, int from) __attribute__((always_inline)) {
    return partial_sums(w + w_offset[j] + from, kOneRow ? x + from : x + x_offset[j] + from, width);
  };
  Floats quads[4];
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
#if defined(__AVX2__)
    const Floats a = sums(j, 0), b = sums(j + 4, 0);
    quads[j] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 12, 13, 14, 15) +
               __builtin_shufflevector(a, b, 4, 5, 6, 7, 8, 9, 10, 11);
#else
    quads[j] = sums(j, 0) + sums(j, W);
#endif
  }
  return sum_quads(quads);
}

// Split values of n <= kBatch pairs (rounded up to W), in the form of WaitingPairs; the splits of their level begin at
// w.
template <int kFixed, bool kOneRow>
void list_split_values(const float* w, const float* x, const std::int32_t* pair, std::int64_t n, std::int64_t width,
                       float* t) {
  width = known<kFixed>(width);
  constexpr int kBits = kOneRow ? 0 : kRowBits;
  // All offsets first: extracting them from vector registers one by one would cost as much as the sums.
  std::int32_t w_offset[kBatch + W], x_offset[kBatch + W];
  for (std::int64_t j = 0; j < n; j += W) {
    const Ints pairs = load_integers<float>(pair + j);
    store_integers<float>(w_offset + j, (pairs >> kBits) * std::int32_t(width));
    if (!kOneRow) store_integers<float>(x_offset + j, (pairs & ((1 << kBits) - 1)) * std::int32_t(width));
  }
  for (std::int64_t j = 0; j < n; j += W) {
    store<float>(t + j, pair_split_values<kOneRow>(w, x, w_offset + j, x_offset + j, width));
  }
}

// Split values of one node for kPanels * W rows in panels [width, W], whose lanes are rows. Two partial sums at a time,
// so that all sums stay in registers.
template <int kPanels>
SOFTWOOD_INLINE void panel_split_values(const float* w, const float* panels, std::int64_t width, float* values) {
  Floats half[kPanels], even[kPanels];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const int first = i / 2 + i % 2 * 2;  // 0, 2, 1, 3
    Floats near[kPanels], far[kPanels];   // partial sums `first` and `first + 4`
#pragma GCC unroll 4
    for (int panel = 0; panel < kPanels; ++panel) {
      near[panel] = w[first] * load(panels + (panel * width + first) * W);
      far[panel] = w[first + 4] * load(panels + (panel * width + first + 4) * W);
    }
#pragma GCC unroll 4
    for (std::int64_t f = kPartialSums + first; f < width; f += kPartialSums) {
#pragma GCC unroll 4
      for (int panel = 0; panel < kPanels; ++panel) {
        near[panel] += w[f] * load(panels + (panel * width + f) * W);
        far[panel] += w[f + 4] * load(panels + (panel * width + f + 4) * W);
      }
    }
#pragma GCC unroll 4
    for (int panel = 0; panel < kPanels; ++panel) {
      const Floats sum = near[panel] + far[panel];
      if (i % 2 == 0) {
        half[panel] = sum;
      } else if (i == 1) {
        even[panel] = half[panel] + sum;
      } else {
        store<float>(values + panel * W, even[panel] + (half[panel] + sum));
      }
    }
  }
}

// Split values of one node for all rows (rounded up to W).
template <int kFixed>
void node_split_values(const float* w, const float* panels, std::int64_t n_rows, std::int64_t width, float* t) {
  width = known<kFixed>(width);
  std::int64_t i = 0;
  for (; i + 4 * W <= n_rows; i += 4 * W) panel_split_values<4>(w, panels + i * width, width, t + i);
  for (; i < n_rows; i += W) panel_split_values<1>(w, panels + i * width, width, t + i);
}

// Both functions for splits of one width.
struct SplitValues {
  void (*of_list)(const float* w, const float* x, const std::int32_t* pair, std::int64_t n, std::int64_t width,
                  float* t);
  void (*of_node)(const float* w, const float* panels, std::int64_t n_rows, std::int64_t width, float* t);
};

template <bool kOneRow>
SplitValues split_values(std::int64_t width) {
  switch (width / kPartialSums) {
    case 1:
      return {&list_split_values<1, kOneRow>, &node_split_values<1>};
    case 2:
      return {&list_split_values<2, kOneRow>, &node_split_values<2>};
    case 3:
      return {&list_split_values<3, kOneRow>, &node_split_values<3>};
    case 4:
      return {&list_split_values<4, kOneRow>, &node_split_values<4>};
    default:
      return {&list_split_values<0, kOneRow>, &node_split_values<0>};
  }
}

// The contribution of a leaf to a score, rounded. The product of two floats is exact in double, so fusing it with the
// addition changes nothing.
SOFTWOOD_INLINE double share(double probability, double leaf, double rounder) {
#if defined(__FMA__)
  return __builtin_fma(probability, leaf, rounder) - rounder;
#else
  return (probability * leaf + rounder) - rounder;
#endif
}

SOFTWOOD_INLINE Vector<double> share(Vector<double> probability, double leaf, double rounder) {
#if defined(__AVX2__) && defined(__FMA__)
  return _mm256_fmadd_pd(probability, broadcast(leaf), broadcast(rounder)) - rounder;
#else
  return (probability * leaf + rounder) - rounder;
#endif
}

SOFTWOOD_INLINE Vector<double> widened(const float* from) {
  typedef float Half __attribute__((vector_size(kVectorBytes / 2), aligned(4)));
  return __builtin_convertvector(*reinterpret_cast<const Half*>(from), Vector<double>);
}

template <typename Act, bool kOneRow>
class Descent {
 public:
  Descent(const PredictorTrees& trees, const float* x, std::int64_t n_rows, double* sums, PredictorScratch& scratch)
      : trees_(trees),
        x_(x),
        n_rows_(n_rows),
        sums_(sums),
        scratch_(scratch),
        activation_(trees.gamma),
        split_values_(split_values<kOneRow>(trees.width)) {}

  // As many trees at once as the integers of pairs allow.
  void run() {
    constexpr std::int64_t kMaxPairs = std::int64_t{1} << 31;
    const std::int64_t group = kMaxPairs >> (trees_.depth + kBits);
    for (first_tree_ = 0; first_tree_ < trees_.n_trees; first_tree_ += group) {
      const std::int64_t n = trees_.n_trees - first_tree_ < group ? trees_.n_trees - first_tree_ : group;
      if (n_rows_ < kPartialSums) {
        start_lists(n);
      } else {
        start_dense(n);
      }
      for (int level = 0; level <= trees_.depth; ++level) {
        while (scratch_.waiting[level].count > 0) follow(level);
      }
    }
  }

 private:
  static constexpr int kBits = kOneRow ? 0 : kRowBits;
  static constexpr std::int32_t kRows = (1 << kBits) - 1;

  const PredictorTrees& trees_;
  const float* x_;
  const std::int64_t n_rows_;
  double* const sums_;
  PredictorScratch& scratch_;
  const Act activation_;
  const SplitValues split_values_;
  std::int64_t first_tree_ = 0;  // of the group

  const float* level_rows(int level) const {
    const std::int64_t n_above = (std::int64_t{1} << level) - 1;
    return trees_.split_rows + (trees_.n_trees * n_above + (first_tree_ << level)) * trees_.width;
  }
  const double* leaves() const { return trees_.leaf_weight + (first_tree_ << trees_.depth) * trees_.n_outputs; }

  void start_lists(std::int64_t n_trees) {
    for (std::int64_t tree = 0; tree < n_trees; ++tree) {
      make_room(0, n_rows_);
      WaitingPairs& to = scratch_.waiting[0];
      for (std::int64_t i = 0; i < n_rows_; ++i, ++to.count) {
        to.pair[to.count] = std::int32_t(tree << kBits | i);
        to.probability[to.count] = 1;
      }
    }
  }

  // Lanes are rows ----------------------------------------------------------------------------------------------------

  void start_dense(std::int64_t n_trees) {
    write_panels();
    float all[kMaxRows];
    for (std::int64_t i = 0; i < kMaxRows; ++i) all[i] = i < n_rows_ ? 1.0F : 0.0F;
    for (std::int64_t tree = 0; tree < n_trees; ++tree) descend(0, tree, all);
  }

  void write_panels() {
    const std::int64_t width = trees_.width;
    float* panels = scratch_.panels;
    for (std::int64_t begin = 0; begin < n_rows_; begin += W) {
      for (std::int64_t f = 0; f < width; f += W, panels += W * W) {
        Floats square[W];
#pragma GCC unroll 8
        for (std::int64_t i = 0; i < W; ++i) {
          square[i] = load(x_ + (begin + i < n_rows_ ? begin + i : n_rows_ - 1) * width + f);
        }
        transpose<float>(square);
#pragma GCC unroll 8
        for (std::int64_t i = 0; i < W; ++i) store<float>(panels + i * W, square[i]);
      }
    }
  }

  // All rows, from a node of the trees of the group to the leaves; probability is [kMaxRows].
  void descend(int level, std::int64_t node, const float* probability) {
    std::int64_t n_reached = 0;
    for (std::int64_t i = 0; i < n_rows_; i += W) n_reached += count_bits(reached(probability + i));
    if (n_reached == 0) return;
    if (n_reached * kDenseFactor < n_rows_) return wait(level, node, probability, n_reached);
    if (level == trees_.depth) return add_leaf(node, probability);
    alignas(64) float t[kMaxRows], left[kMaxRows], right[kMaxRows];
    split_values_.of_node(level_rows(level) + node * trees_.width, scratch_.panels, n_rows_, trees_.width, t);
    for (std::int64_t i = 0; i < n_rows_; i += W) {
      const Routed<float> routed = route<float>(activation_, load(t + i), load(probability + i));
      store<float>(left + i, routed.left);
      store<float>(right + i, routed.right);
    }
    descend(level + 1, 2 * node, left);
    descend(level + 1, 2 * node + 1, right);
  }

  static SOFTWOOD_INLINE std::uint32_t reached(const float* probability) {
    return bits<float>(load(probability) != Floats{});
  }

  void wait(int level, std::int64_t node, const float* probability, std::int64_t n_reached) {
    make_room(level, n_reached);
    WaitingPairs& to = scratch_.waiting[level];
    Ints pairs;
    for (int i = 0; i < W; ++i) pairs[i] = std::int32_t(node << kBits) + i;
    std::int64_t end = to.count;
    for (std::int64_t i = 0; i < n_rows_; i += W, pairs += W) {
      const std::uint32_t chosen = reached(probability + i);
      store_integers<float>(to.pair + end, compress<float>(pairs, chosen));
      store<float>(to.probability + end, compress<float>(load(probability + i), chosen));
      end += count_bits(chosen);
    }
    SOFTWOOD_ASSERT(end == to.count + n_reached);
    to.count = end;
    check_pairs(level, to);
  }

  // Debug builds: the pairs of a level point to nodes and rows that exist.
  void check_pairs([[maybe_unused]] int level, [[maybe_unused]] const WaitingPairs& waiting) const {
#if defined(SOFTWOOD_DEBUG)
    SOFTWOOD_ASSERT(waiting.count <= kMaxWaiting);
    for (std::int64_t j = 0; j < waiting.count; ++j) {
      SOFTWOOD_ASSERT(waiting.pair[j] >> kBits < (trees_.n_trees - first_tree_) << level);
      SOFTWOOD_ASSERT((waiting.pair[j] & kRows) < n_rows_);
      SOFTWOOD_ASSERT(waiting.probability[j] >= 0 && waiting.probability[j] <= 1);
    }
#endif
  }

  void add_leaf(std::int64_t node, const float* probability) {
    const std::int64_t k = trees_.n_outputs;
    const double rounder = trees_.rounder;
    const double* const leaf = leaves() + node * k;
    for (std::int64_t i = 0; i < n_rows_; i += kLanes<double>) {
      const Vector<double> arrived = widened(probability + i);
      double* to = sums_ + i;
      for (std::int64_t c = 0; c < k; ++c, to += kMaxRows) {
        store<double>(to, load(to) + share(arrived, leaf[c], rounder));
      }
    }
  }

  // Lanes are pairs ---------------------------------------------------------------------------------------------------

  void make_room(int level, std::int64_t n) {
    while (scratch_.waiting[level].count + n > kMaxWaiting) follow(level);
  }

  // Follows some pairs of a level to the next one, or adds all leaves to the sums.
  void follow(int level) {
    WaitingPairs& from = scratch_.waiting[level];
    if (level == trees_.depth) return add_leaves(from);
    const std::int64_t n = from.count < kBatch ? from.count : kBatch;
    make_room(level + 1, 2 * n);
    SOFTWOOD_ASSERT(scratch_.waiting[level + 1].count + 2 * n <= kMaxWaiting);
    from.count -= n;
    step(level, from.pair + from.count, from.probability + from.count, n, scratch_.waiting[level + 1]);
  }

  // The more likely child of a pair is always reached and takes its place; the other child is appended if it is
  // reached.
  void step(int level, std::int32_t* pair, float* probability, std::int64_t n, WaitingPairs& to) {
    for (int i = 0; i < W; ++i) {  // the lanes past the end repeat the last pair with probability 0
      pair[n + i] = pair[n - 1];
      probability[n + i] = 0;
    }
    float t[kBatch + W];
    split_values_.of_list(level_rows(level), x_, pair, n, trees_.width, t);
    std::int32_t minor_pair[kBatch + W];
    float minor_probability[kBatch + W];
    std::int64_t n_minor = 0;
    std::int32_t* const next_pair = to.pair + to.count;
    float* const next_probability = to.probability + to.count;
    for (std::int64_t j = 0; j < n; j += W) {
      const Floats arrived = load(probability + j), value = load(t + j);
      const Floats minor = arrived * activation_.minor(absolute<float>(value));
      const Ints pairs = load_integers<float>(pair + j), negative = is_negative<float>(value);
      const Ints left = 2 * pairs - (pairs & kRows);
      store_integers<float>(next_pair + j, left - (negative << kBits));
      store<float>(next_probability + j, arrived - minor);
      const std::uint32_t chosen = bits<float>(minor != Floats{});
      store_integers<float>(minor_pair + n_minor, compress<float>(left + ((negative + 1) << kBits), chosen));
      store<float>(minor_probability + n_minor, compress<float>(minor, chosen));
      n_minor += count_bits(chosen);
    }
    __builtin_memcpy(next_pair + n, minor_pair, std::size_t(n_minor) * sizeof(std::int32_t));
    __builtin_memcpy(next_probability + n, minor_probability, std::size_t(n_minor) * sizeof(float));
    to.count += n + n_minor;
    check_pairs(level + 1, to);
  }

  void add_leaves(WaitingPairs& from) {
    const std::int64_t k = trees_.n_outputs, count = from.count;
    const double rounder = trees_.rounder;
    const double* const leaf_weight = leaves();
    if (k == 1) {
      for (std::int64_t j = 0; j < count; ++j) {
        const std::int32_t pair = from.pair[j];
        sums_[pair & kRows] += share(from.probability[j], leaf_weight[pair >> kBits], rounder);
      }
    } else {
      for (std::int64_t j = 0; j < count; ++j) {
        const std::int32_t pair = from.pair[j];
        const double* const leaf = leaf_weight + (pair >> kBits) * k;
        double* const to = sums_ + (pair & kRows);
        for (std::int64_t c = 0; c < k; ++c) to[c * kMaxRows] += share(from.probability[j], leaf[c], rounder);
      }
    }
    from.count = 0;
  }
};

template <typename Act>
void add_all_trees(const PredictorTrees& trees, const float* x, std::int64_t n_rows, double* sums,
                   PredictorScratch& scratch) {
  if (n_rows == 1) {
    Descent<Act, true>(trees, x, n_rows, sums, scratch).run();
  } else {
    Descent<Act, false>(trees, x, n_rows, sums, scratch).run();
  }
}

void add_scores(const PredictorTrees& trees, const float* x, std::int64_t n_rows, double* sums,
                PredictorScratch& scratch) {
  const FlushSubnormals flush;
  switch (trees.activation) {
    case Activation::smooth_step:
      return add_all_trees<SmoothStep<float>>(trees, x, n_rows, sums, scratch);
    case Activation::smoother_step:
      return add_all_trees<SmootherStep<float>>(trees, x, n_rows, sums, scratch);
    case Activation::logistic:
      return add_all_trees<Logistic<float>>(trees, x, n_rows, sums, scratch);
  }
}

}  // namespace

extern const PredictorKernels predictor_kernels = {&add_scores};

}  // namespace softwood::SOFTWOOD_ISA

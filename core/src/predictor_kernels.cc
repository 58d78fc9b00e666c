// Algorithm 1 of the paper for a block of rows and all trees at once, level by level as in lists.h: the pairs of one
// level are a list, a vector's lanes of them are computed at a time, and a stable partition makes the next level's. A
// single row is a block of one: its trees fill the lanes. Unlike the kernels of training, the order of each sum is the
// same on every machine, so this file is compiled without contraction.
#include "predictor_kernels.h"

#include "activation.h"

namespace softwood::SOFTWOOD_ISA {
namespace {

constexpr int W = kLanes<float>;
constexpr int kQuad = kPart<float>;
// A node that at least one in kDenseShare rows of the block reach is computed for all of them: that is so much faster.
constexpr std::int64_t kDenseShare = 3;
using Floats = Vector<float>;
using Ints = Integers<float>;

// Partial sums c * W, ..., c * W + W - 1 of the dot products of kQuad pairs of rows, added inside 128-bit parts.
SOFTWOOD_INLINE Floats dot_parts(const float* const (&w)[kQuad], const float* const (&x)[kQuad], std::int64_t width) {
  Floats sums[kQuad];
#pragma GCC unroll 4
  for (int j = 0; j < kQuad; ++j) sums[j] = load(w[j]) * load(x[j]);
  for (std::int64_t f = kPredictorLanes; f < width; f += kPredictorLanes) {
#pragma GCC unroll 4
    for (int j = 0; j < kQuad; ++j) sums[j] += load(w[j] + f) * load(x[j] + f);
  }
  return sum_parts<float>(sums);
}

// Split values of the W pairs at `from`, whose split rows begin at `level_rows`.
SOFTWOOD_INLINE Floats split_values(const float* level_rows, const float* x, std::int64_t width, const Arrivals& from) {
  constexpr int kChunks = int(kPredictorLanes) / W;
  // Offsets for all lanes at once: the loop is bound by its integer instructions.
  std::int32_t w_offset[W], x_offset[W];
  store_integers<float>(w_offset, load_integers<float>(from.node) * std::int32_t(width));
  store_integers<float>(x_offset, load_integers<float>(from.row) * std::int32_t(width));
  Floats chunks[kChunks];
#pragma GCC unroll 4
  for (int c = 0; c < kChunks; ++c) {
    Floats groups[W / kQuad];
#pragma GCC unroll 4
    for (int g = 0; g < W / kQuad; ++g) {
      const float* w[kQuad];
      const float* features[kQuad];
#pragma GCC unroll 4
      for (int j = 0; j < kQuad; ++j) {
        w[j] = level_rows + w_offset[kQuad * g + j] + c * W;
        features[j] = x + x_offset[kQuad * g + j] + c * W;
      }
      groups[g] = dot_parts(w, features, width);
    }
    chunks[c] = add_parts<float>(groups);
  }
#pragma GCC unroll 4
  for (int count = kChunks / 2; count >= 1; count /= 2) {
#pragma GCC unroll 4
    for (int i = 0; i < count; ++i) chunks[i] = chunks[2 * i] + chunks[2 * i + 1];
  }
  return chunks[0];
}

// Split values of one node for all rows, which stand in the lanes: x as tiles [n / W, width, W].
SOFTWOOD_INLINE void dense_split_values(const float* w, const float* tiles, std::int64_t width, std::int64_t n_rows,
                                        float* values) {
  for (std::int64_t begin = 0; begin < n_rows; begin += W, tiles += W * width) {
    Floats sums[kPredictorLanes];
#pragma GCC unroll 8
    for (int i = 0; i < kPredictorLanes; ++i) sums[i] = w[i] * load(tiles + i * W);
    for (std::int64_t f = kPredictorLanes; f < width; f += kPredictorLanes) {
#pragma GCC unroll 8
      for (int i = 0; i < kPredictorLanes; ++i) sums[i] += w[f + i] * load(tiles + (f + i) * W);
    }
    const Floats low = (sums[0] + sums[1]) + (sums[2] + sums[3]), high = (sums[4] + sums[5]) + (sums[6] + sums[7]);
    store<float>(values + begin, low + high);
  }
}

// Writes chosen lanes one after the other.
struct Writer {
  Arrivals to;
  SOFTWOOD_INLINE void append(std::uint32_t chosen, Ints nodes, Ints rows, Floats probabilities) {
    store_integers<float>(to.node, compress<float>(nodes, chosen));
    store_integers<float>(to.row, compress<float>(rows, chosen));
    store<float>(to.probability, compress<float>(probabilities, chosen));
    to = to.from(count_bits(chosen));
  }
};

// The W pairs from `i` on, of which only those before `count` count: entries past the end repeat the last one with
// probability 0, so that they reach nothing.
struct LastPairs {
  std::int32_t node[W], row[W];
  float probability[W];
  LastPairs(const Arrivals& list, std::int64_t begin, std::int64_t count) {
    for (int i = 0; i < W; ++i) {
      const std::int64_t inside = begin + i < count ? begin + i : count - 1;
      node[i] = list.node[inside];
      row[i] = list.row[inside];
      probability[i] = begin + i < count ? list.probability[inside] : 0;
    }
  }
  Arrivals view() { return {node, row, probability}; }
};

template <typename Act>
struct Descent {
  const PredictorTrees& trees;
  const float* x;
  const float* tiles;  // of x, or null: too few rows for dense nodes
  std::int64_t n_rows;
  std::int64_t* sums;
  Act activation;

  // Follows `count` <= kLongestList pairs from `level` to the leaves. Memory from `free` on is unused.
  void run(int level, const Arrivals& list, std::int64_t count, const Arrivals& free) const {
    if (level == trees.depth) return add_leaves(list, count);
    float t[kLongestList + W];
    fill_split_values(level, list, count, t);
    const Arrivals next = free, rights = free.from(count + 2 * W), rest = free.from(2 * count + 4 * W);
    const std::int64_t n_next = partition(list, count, t, next, rights);
    for (std::int64_t begin = 0; begin < n_next; begin += kLongestList) {
      const std::int64_t piece = n_next - begin < kLongestList ? n_next - begin : kLongestList;
      run(level + 1, next.from(begin), piece, rest);
    }
  }

  // By runs of pairs that share a node, where they are long, and else W pairs at a time.
  void fill_split_values(int level, const Arrivals& list, std::int64_t count, float* t) const {
    const float* const rows = trees.split_rows + trees.n_trees * ((std::int64_t{1} << level) - 1) * trees.width;
    if (!has_long_runs(list, count)) return fill_sparse(rows, list, 0, count, t);
    float all[kMostRows + W];
    std::int64_t sparse_begin = 0;
    for (std::int64_t begin = 0, end = 0; begin < count; begin = end) {
      const std::int32_t node = list.node[begin];
      for (end = begin + 1; end < count && list.node[end] == node;) ++end;
      if ((end - begin) * kDenseShare < n_rows) continue;
      fill_sparse(rows, list, sparse_begin, begin, t);
      sparse_begin = end;
      dense_split_values(rows + node * trees.width, tiles, trees.width, n_rows, all);
      for (std::int64_t j = begin; j < end; ++j) t[j] = all[list.row[j]];
    }
    fill_sparse(rows, list, sparse_begin, count, t);
  }

  // Looks at a few places only: finding the ends of many short runs costs a missed branch each.
  bool has_long_runs(const Arrivals& list, std::int64_t count) const {
    if (tiles == nullptr) return false;
    const std::int64_t length = (n_rows + kDenseShare - 1) / kDenseShare;
    int found = 0;
    for (std::int64_t i = 0; i < 8; ++i) {
      const std::int64_t begin = i * count / 8;
      found += begin + length <= count && list.node[begin] == list.node[begin + length - 1];
    }
    return found >= 3;
  }

  SOFTWOOD_INLINE void fill_sparse(const float* rows, const Arrivals& list, std::int64_t begin, std::int64_t end,
                                   float* t) const {
    std::int64_t j = begin;
    for (; j + W <= end; j += W) store<float>(t + j, split_values(rows, x, trees.width, list.from(j)));
    if (j < end) {
      LastPairs last(list, j, end);
      const Floats values = split_values(rows, x, trees.width, last.view());
      for (std::int64_t i = j; i < end; ++i) t[i] = values[i - j];
    }
  }

  // Fills `next` with the children that are reached, lefts before rights; `rights` is memory for them meanwhile.
  std::int64_t partition(const Arrivals& list, std::int64_t count, const float* t, const Arrivals& next,
                         const Arrivals& rights) const {
    Writer left{next}, right{rights};
    const auto route_pairs = [&](const Arrivals& from, Floats values) {
      const Routed<float> routed = route<float>(activation, values, load<float>(from.probability));
      const Ints children = 2 * load_integers<float>(from.node), rows = load_integers<float>(from.row);
      left.append(bits<float>(routed.left != Floats{}), children, rows, routed.left);
      right.append(bits<float>(routed.right != Floats{}), children + 1, rows, routed.right);
    };
    std::int64_t j = 0;
    for (; j + W <= count; j += W) route_pairs(list.from(j), load(t + j));
    if (j < count) {
      LastPairs last(list, j, count);
      Floats values{};
      for (std::int64_t i = j; i < count; ++i) values[i - j] = t[i];
      route_pairs(last.view(), values);
    }
    const std::int64_t n_left = left.to.node - next.node, n_right = right.to.node - rights.node;
    __builtin_memmove(left.to.node, rights.node, std::size_t(n_right) * sizeof(std::int32_t));
    __builtin_memmove(left.to.row, rights.row, std::size_t(n_right) * sizeof(std::int32_t));
    __builtin_memmove(left.to.probability, rights.probability, std::size_t(n_right) * sizeof(float));
    return n_left + n_right;
  }

  void add_leaves(const Arrivals& list, std::int64_t count) const {
    const std::int64_t k = trees.n_outputs;
    if (k == 1) {
      for (std::int64_t j = 0; j < count; ++j) {
        sums[list.row[j]] += share(list.probability[j], trees.leaf_weight[list.node[j]]);
      }
      return;
    }
    for (std::int64_t j = 0; j < count; ++j) {
      const float* const leaf = trees.leaf_weight + list.node[j] * k;
      std::int64_t* const to = sums + list.row[j] * k;
      for (std::int64_t c = 0; c < k; ++c) to[c] += share(list.probability[j], leaf[c]);
    }
  }

  SOFTWOOD_INLINE std::int64_t share(float probability, float leaf) const {
    return static_cast<std::int64_t>(double(probability) * double(leaf) * trees.score_scale);
  }
};

void write_tiles(const float* x, std::int64_t n_rows, std::int64_t width, float* tiles) {
  for (std::int64_t begin = 0; begin < n_rows; begin += W, tiles += W * width) {
    for (std::int64_t i = 0; i < W; ++i) {
      const float* const row = x + (begin + i < n_rows ? begin + i : n_rows - 1) * width;
      for (std::int64_t f = 0; f < width; ++f) tiles[f * W + i] = row[f];
    }
  }
}

template <typename Act>
void add_all_trees(const PredictorTrees& trees, const float* x, std::int64_t n_rows, std::int64_t* sums, float* tiles,
                   Arrivals scratch) {
  if (n_rows >= kPredictorLanes) {
    write_tiles(x, n_rows, trees.width, tiles);
  } else {
    tiles = nullptr;
  }
  const Descent<Act> descent{trees, x, tiles, n_rows, sums, Act(trees.gamma)};
  const std::int64_t group = kLongestList / n_rows;
  for (std::int64_t first = 0; first < trees.n_trees; first += group) {
    const std::int64_t end = trees.n_trees - first < group ? trees.n_trees : first + group;
    std::int64_t count = 0;
    for (std::int64_t tree = first; tree < end; ++tree) {
      for (std::int64_t i = 0; i < n_rows; ++i, ++count) {
        scratch.node[count] = std::int32_t(tree);
        scratch.row[count] = std::int32_t(i);
        scratch.probability[count] = 1;
      }
    }
    descent.run(0, scratch, count, scratch.from(count + 2 * W));
  }
}

void add_scores(const PredictorTrees& trees, const float* x, std::int64_t n_rows, std::int64_t* sums, float* tiles,
                Arrivals scratch) {
  const FlushSubnormals flush;
  switch (trees.activation) {
    case Activation::smooth_step:
      return add_all_trees<SmoothStep<float>>(trees, x, n_rows, sums, tiles, scratch);
    case Activation::smoother_step:
      return add_all_trees<SmootherStep<float>>(trees, x, n_rows, sums, tiles, scratch);
    case Activation::logistic:
      return add_all_trees<Logistic<float>>(trees, x, n_rows, sums, tiles, scratch);
  }
}

}  // namespace

extern const PredictorKernels predictor_kernels = {&add_scores};

}  // namespace softwood::SOFTWOOD_ISA

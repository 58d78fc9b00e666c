// The paper's Algorithms 1 and 2 taken literally: depth first, one sample, one tree and one node at a time, one dot
// product a node. A rival in the benchmarks and an independent oracle in the tests, so it shares no code with the core;
// only the backward pass deviates from the paper, whose quotients by S and 1 - S it avoids.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace literal {

template <typename T>
struct Trees {
  const T* split_weight;  // [m, 2^d - 1, p]
  const T* split_bias;    // [m, 2^d - 1], or null
  const T* leaf_weight;   // [m, 2^d, k]
  std::int64_t m, p, k;
  int d;
  int activation;  // 0 smooth-step, 1 degree 5, 2 logistic
  T gamma;
  std::int64_t n_splits() const { return (std::int64_t{1} << d) - 1; }
  std::int64_t n_leaves() const { return std::int64_t{1} << d; }
};

// A fractional split or a leaf (slope 0) that a sample reached; hard splits pass everything on and leave no trace.
template <typename T>
struct Visit {
  std::int64_t row;  // of the split's or the leaf's parameters
  T probability, left, slope;
};

// What one forward pass visited: pre-order within each sample and tree.
template <typename T>
struct Visits {
  std::vector<Visit<T>> all;
  std::vector<std::size_t> end;  // [n, m]
  std::int64_t n_splits_visited = 0;
};

template <typename T>
T dot(const T* a, const T* b, std::int64_t p) {
  constexpr int kLanes = 16;  // independent sums, so that the compiler may use vectors
  T lanes[kLanes] = {};
  std::int64_t f = 0;
  for (; f + kLanes <= p; f += kLanes) {
    for (int i = 0; i < kLanes; ++i) lanes[i] += a[f + i] * b[f + i];
  }
  T total = 0;
  for (; f < p; ++f) total += a[f] * b[f];
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return total + lanes[0];
}

// Whether the sample goes both ways; if so, the probability of going left and its slope.
template <typename T>
bool is_fractional(const Trees<T>& trees, T t, T& left, T& slope) {
  const T gamma = trees.gamma;
  if (trees.activation == 2) {
    left = 1 / (1 + std::exp(-t / gamma));
    slope = left * (1 - left) / gamma;
    return true;
  }
  if (t <= -gamma / 2 || t >= gamma / 2) return false;
  const T v = t / gamma + T(0.5);
  if (trees.activation == 0) {
    left = v * v * (3 - 2 * v);
    slope = 6 * v * (1 - v) / gamma;
  } else {
    left = v * v * v * (10 - 15 * v + 6 * v * v);
    slope = 30 * v * v * (1 - v) * (1 - v) / gamma;
  }
  return true;
}

template <typename T>
void descend(const Trees<T>& trees, const T* x, std::int64_t tree, std::int64_t node, T probability, T* output,
             Visits<T>* visits) {
  while (node < trees.n_splits()) {
    const std::int64_t row = tree * trees.n_splits() + node;
    T t = dot(trees.split_weight + row * trees.p, x, trees.p);
    if (trees.split_bias != nullptr) t += trees.split_bias[row];
    T left, slope;
    if (visits != nullptr) ++visits->n_splits_visited;
    if (is_fractional(trees, t, left, slope)) {
      if (visits != nullptr) visits->all.push_back({row, probability, left, slope});
      descend(trees, x, tree, 2 * node + 1, probability * left, output, visits);
      probability *= 1 - left;
      node = 2 * node + 2;
    } else {
      node = 2 * node + (t > 0 ? 1 : 2);
    }
  }
  const std::int64_t row = tree * trees.n_leaves() + node - trees.n_splits();
  if (visits != nullptr) visits->all.push_back({row, probability, T(-1), T(0)});
  for (std::int64_t c = 0; c < trees.k; ++c) output[c] += probability * trees.leaf_weight[row * trees.k + c];
}

// output [n, k] is overwritten; `visits`, if not null, is filled for `backward`.
template <typename T>
void forward(const Trees<T>& trees, const T* x, std::int64_t n, T* output, Visits<T>* visits) {
  if (visits != nullptr) {
    visits->all.clear();
    visits->end.clear();
    visits->n_splits_visited = 0;
  }
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t c = 0; c < trees.k; ++c) output[i * trees.k + c] = 0;
    for (std::int64_t tree = 0; tree < trees.m; ++tree) {
      descend(trees, x + i * trees.p, tree, 0, T(1), output + i * trees.k, visits);
      if (visits != nullptr) visits->end.push_back(visits->all.size());
    }
  }
}

// Adds to grad_x [n, p], grad_split [m, 2^d - 1, p], grad_bias (or null) and grad_leaf [m, 2^d, k].
template <typename T>
void backward(const Trees<T>& trees, const T* x, std::int64_t n, const T* grad_output, const Visits<T>& visits,
              T* grad_x, T* grad_split, T* grad_bias, T* grad_leaf) {
  std::vector<T> expected;  // of the subtrees that are done; in reversed pre-order the left one is done last
  std::size_t begin = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const T* g = grad_output + i * trees.k;
    for (std::int64_t tree = 0; tree < trees.m; ++tree) {
      const std::size_t end = visits.end[static_cast<std::size_t>(i * trees.m + tree)];
      expected.clear();
      for (std::size_t at = end; at-- > begin;) {
        const Visit<T>& visit = visits.all[at];
        if (visit.left < 0) {
          T sum = 0;
          for (std::int64_t c = 0; c < trees.k; ++c) {
            sum += g[c] * trees.leaf_weight[visit.row * trees.k + c];
            grad_leaf[visit.row * trees.k + c] += visit.probability * g[c];
          }
          expected.push_back(sum);
          continue;
        }
        const T e_left = expected.back();
        expected.pop_back();
        const T e_right = expected.back();
        expected.back() = visit.left * e_left + (1 - visit.left) * e_right;
        const T grad_t = visit.slope * visit.probability * (e_left - e_right);
        for (std::int64_t f = 0; f < trees.p; ++f) {
          grad_split[visit.row * trees.p + f] += grad_t * x[i * trees.p + f];
          grad_x[i * trees.p + f] += grad_t * trees.split_weight[visit.row * trees.p + f];
        }
        if (grad_bias != nullptr) grad_bias[visit.row] += grad_t;
      }
      begin = end;
    }
  }
}

}  // namespace literal

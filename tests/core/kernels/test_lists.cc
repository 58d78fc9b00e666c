// lists.h and split_values.h: split values of lists, both ways to the level below, and outputs, against loops over the
// entries.
#include "run.h"  // first

#include "split_values.h"

using namespace softwood;
using namespace softwood::SOFTWOOD_ISA;

// Runs of 1, 2, 3, ... entries of one node, for the nodes of some level in turn; samples in any order.
template <typename T>
static List<T>* make_list(Arena& arena, std::int64_t count, std::int64_t n_codes, std::int64_t n_samples) {
  List<T>* list = allocate_list<T>(arena, count, true, true);
  std::int64_t code = 0, left_in_run = 1, run = 1;
  for (std::int64_t j = 0; j < count; ++j) {
    list->pair[j] = Integer<T>(code << kSampleBits | j * 7 % n_samples);
    list->probability[j] = T(1) / T(1 + j % 3);
    if (--left_in_run == 0 && code + 1 < n_codes) ++code, left_in_run = ++run;
  }
  pad_list(*list);
  return list;
}

template <typename T, int kVectors>
static void split_values_are_products(std::int64_t p, std::int64_t count, bool with_bias) {
  constexpr std::int64_t n_trees = 3, n_samples = 40;
  constexpr int depth = 5, level = 3;
  const auto size = [](std::int64_t n) { return static_cast<std::size_t>(n); };
  const std::int64_t stride = vectors_in<T>(p) * kLanes<T>, n_splits = (1 << depth) - 1, first = (1 << level) - 1;
  Arena arena, scratch;
  T* x = arena.allocate<T>(n_samples * stride);
  for (std::int64_t i = 0; i < n_samples * stride; ++i) x[i] = i % stride < p ? T(i * 5 % 13) - 6 : T(0);
  std::vector<T> weights(size(n_trees * n_splits * p)), bias(size(n_trees * n_splits));
  // Small integers: sums are exact, whatever their order.
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = T(int(i * 7 % 11) - 5);
  for (std::size_t i = 0; i < bias.size(); ++i) bias[i] = T(int(i % 9) - 4);
  const Ensemble<T> ensemble{weights.data(), with_bias ? bias.data() : nullptr, nullptr, n_trees, p, 1,
                             depth,          Activation::smooth_step,           T(8)};
  List<T>* list = make_list<T>(arena, count, n_trees << level, n_samples);
  std::vector<T> want;
  std::int64_t n_left = 0, n_right = 0;
  for (std::int64_t j = 0; j < count; ++j) {
    const std::int64_t code = code_of(list->pair[j]), tree = code >> level, place = code - (tree << level);
    const std::size_t row = size(tree * n_splits + first + place);
    T t = with_bias ? bias[row] : T(0);
    const T* sample = x + sample_of(list->pair[j]) * stride;
    for (std::int64_t f = 0; f < p; ++f) t += weights[row * size(p) + size(f)] * sample[f];
    want.push_back(t);
    n_left += t > -4;
    n_right += t < 4;
  }
  const auto is_right = [&](const Bounds& bounds) {
    CHECK(std::vector<T>(list->t, list->t + count) == want);
    CHECK(bounds.left >= n_left && bounds.left <= n_left + kLanes<T>);
    CHECK(bounds.right >= n_right && bounds.right <= n_right + kLanes<T>);
    CHECK(!bounds.has_nan);
    for (std::int64_t j = 0; j < count; ++j) list->t[j] = -1;
  };
  const Rows<T> rows{x, n_samples, stride};
  is_right(grouped_split_values<T, kVectors>(ensemble, rows, level, *list));
  is_right(single_split_values<T, kVectors>(ensemble, rows, level, *list, scratch));
  if (count == 0) return;
  x[sample_of(list->pair[count - 1]) * stride] = std::numeric_limits<T>::quiet_NaN();
  CHECK((grouped_split_values<T, kVectors>(ensemble, rows, level, *list).has_nan));
  CHECK((single_split_values<T, kVectors>(ensemble, rows, level, *list, scratch).has_nan));
}

// Where the children of an entry should be, and with which probability.
template <typename T>
struct Child {
  Integer<T> code, sample;
  T probability;
};

template <typename T>
static void is_list_of(const List<T>& list, const std::vector<Child<T>>& want) {
  CHECK(list.count == std::int64_t(want.size()));
  bool right = true;
  for (std::size_t j = 0; j < want.size(); ++j) {
    right &= code_of(list.pair[j]) == want[j].code && sample_of(list.pair[j]) == want[j].sample;
    right &= std::abs(list.probability[j] - want[j].probability) < T(1e-6);
  }
  CHECK(right);
  for (std::int64_t j = list.count; j < list.count + kLanes<T>; ++j) CHECK(list.probability[j] == 0);
}

template <typename T>
static void children_are_where_they_belong(std::int64_t count) {
  Arena arena, scratch;
  List<T>* list = make_list<T>(arena, count, 20, 40);
  const SmoothStep<T> activation(T(1));
  std::vector<Child<T>> lefts, rights, likelier;
  std::vector<std::vector<Child<T>>> others(static_cast<std::size_t>(count / kLanes<T> + 1));  // by vector of parents
  for (std::int64_t j = 0; j < count; ++j) {
    constexpr T values[] = {T(-0.5), T(0.5), T(3), T(-0.25), T(-3), T(0.125), T(2)};
    const T t = list->t[j] = values[j % 7];
    const T v = t <= T(-0.5) ? T(0) : t >= T(0.5) ? T(1) : t + T(0.5);
    const T share = v * v * (3 - 2 * v), probability = list->probability[j];
    const Integer<T> code = code_of(list->pair[j]), sample = sample_of(list->pair[j]);
    const Child<T> left{2 * code, sample, probability * share};
    const Child<T> right{2 * code + 1, sample, probability * (1 - share)};
    if (left.probability > 0) lefts.push_back(left);
    if (right.probability > 0) rights.push_back(right);
    likelier.push_back(t > 0 ? left : right);
    if (share > 0 && share < 1) others[static_cast<std::size_t>(j / kLanes<T>)].push_back(t > 0 ? right : left);
  }
  const Bounds bounds{std::int64_t(lefts.size()), std::int64_t(rights.size()), false};

  list->next = allocate_list<T>(arena, bounds.left + bounds.right, true, false);
  partition(activation, bounds, *list, scratch);
  CHECK(list->n_left == bounds.left);
  lefts.insert(lefts.end(), rights.begin(), rights.end());
  is_list_of(*list->next, lefts);

  list->next = allocate_list<T>(arena, bounds.left + bounds.right, false, false);
  branch(activation, *list);
  for (auto vector = others.rbegin(); vector != others.rend(); ++vector) {
    likelier.insert(likelier.end(), vector->begin(), vector->end());
  }
  is_list_of(*list->next, likelier);
}

template <typename T>
static void outputs_are_sums_over_leaves(std::int64_t count, std::int64_t k) {
  constexpr std::int64_t n_leaves = 24, n_samples = 40;
  Arena arena, scratch;
  const List<T>* list = make_list<T>(arena, count, n_leaves, n_samples);
  std::vector<T> leaves(static_cast<std::size_t>(n_leaves * k)), got(static_cast<std::size_t>(n_samples * k));
  for (std::size_t i = 0; i < leaves.size(); ++i) leaves[i] = T(int(i * 7 % 11) - 5);
  for (std::size_t i = 0; i < got.size(); ++i) got[i] = T(i % 5);  // added to
  std::vector<T> want = got;
  for (std::int64_t j = 0; j < count; ++j) {
    for (std::int64_t c = 0; c < k; ++c) {
      want[static_cast<std::size_t>(sample_of(list->pair[j]) * k + c)] +=
          list->probability[j] * leaves[static_cast<std::size_t>(code_of(list->pair[j]) * k + c)];
    }
  }
  const Ensemble<T> ensemble{nullptr, nullptr, leaves.data(), 3, 1, k, 3, Activation::smooth_step, T(1)};
  list_output(ensemble, *list, n_samples, got.data(), scratch);
  bool right = true;
  for (std::size_t i = 0; i < got.size(); ++i) right &= std::abs(got[i] - want[i]) < T(1e-4);
  CHECK(right);
}

template <typename T>
static void pairs_hold_the_largest_codes() {
  constexpr Integer<T> code = Integer<T>(kMaxLeaves / 2 - 1), sample = Integer<T>(kMaxSamples - 1);
  const Integer<T> left = left_child(code << kSampleBits | sample), right = right_sibling(left);
  CHECK(code_of(left) == 2 * code && code_of(right) == 2 * code + 1);
  CHECK(sample_of(left) == sample && sample_of(right) == sample);
}

template <typename T>
static void all() {
  pairs_hold_the_largest_codes<T>();
  for (std::int64_t count : {0, 1, 2, 7, 8, 9, 16, 31, 64, 150}) {
    children_are_where_they_belong<T>(count);
    for (std::int64_t k : {1, 2, 3, kLanes<T>, kLanes<T> + 1}) outputs_are_sums_over_leaves<T>(count, k);
    for (bool with_bias : {false, true}) {
      split_values_are_products<T, 1>(1, count, with_bias);
      split_values_are_products<T, 1>(kLanes<T>, count, with_bias);
      split_values_are_products<T, 4>(4 * kLanes<T> - 1, count, with_bias);
      split_values_are_products<T, 0>(6 * kLanes<T> + 1, count, with_bias);
    }
  }
}

int main() {
  return run_if_supported([] {
    all<float>();
    all<double>();
  });
}

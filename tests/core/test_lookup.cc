// Blocks by hand, epochs on several numbers of threads, and prediction of what was trained. Step by step the trainer is
// compared with NumPy in the Python tests.
#include "softwood/lookup.h"

#include <cmath>
#include <random>
#include <stdexcept>
#include <vector>

#include "check.h"
#include "lookup_layout.h"

using namespace softwood;

namespace {

void check_blocks() {
  const auto shape = [](int depth) { return LookupShape{1, depth, 1}; };
  for (int depth = 1; depth <= 4; ++depth) {
    CHECK(shape(depth).n_blocks() == 1 && shape(depth).n_leaf_blocks() == 1 && shape(depth).root_levels() == depth);
  }
  CHECK(shape(5).n_blocks() == 3 && shape(5).root_levels() == 1 && shape(5).n_leaf_blocks() == 2);
  CHECK(shape(8).n_blocks() == 17 && shape(8).n_leaf_blocks() == 16);
  CHECK(shape(9).n_blocks() == 35 && shape(9).first_block(2) == 3 && shape(9).n_leaf_blocks() == 32);
  CHECK(shape(20).n_leaf_blocks() == 65536 && shape(20).n_block_levels() == 5);
}

// A number with 6 knots and a missing entry, a category of 4 levels, and a lazy one of 300.
struct Problem {
  static constexpr std::int64_t m = 9, q = 3, k = 2, n = 400;
  const int depth;
  std::vector<float> ones = std::vector<float>(300, 1), halves = std::vector<float>(300, 0.5);
  std::vector<LookupColumn> columns;
  std::vector<std::int32_t> block_columns;
  std::vector<std::uint32_t> cells = std::vector<std::uint32_t>(n * q);
  std::vector<float> y = std::vector<float>(n * k), offset = {0.25F, -0.5F};
  std::vector<float> table, split_bias, leaf_weight, scores = std::vector<float>(n * k);
  std::vector<std::vector<float>> moments;
  std::unique_ptr<Trainer<float>> trainer;

  LookupShape shape() const { return {m, depth, 2}; }

  explicit Problem(int depth_) : depth(depth_) {
    std::mt19937 random(1);
    const auto column = [&](std::int32_t n_entries, std::int32_t n_knots, std::int32_t n_levels, bool lazy) {
      return LookupColumn{n_entries,     n_knots,       n_levels,      lazy,         ones.data(),
                          halves.data(), halves.data(), halves.data(), halves.data()};
    };
    columns = {column(7, 6, 1, false), column(4, 0, 4, false), column(300, 0, 300, true)};
    for (std::int64_t i = 0; i < n; ++i) {
      const std::uint32_t e = random() % 7, category = random() % 4, code = random() % 300;
      cells[i * q] = e | (e < 5 ? random() % 65536 << 16 : 0);
      cells[i * q + 1] = category;
      cells[i * q + 2] = code;
      y[i * k] = float(e) / 3 - float(category);
      y[i * k + 1] = float(code % 2);
    }
    const std::int64_t n_blocks = m * shape().n_blocks();
    for (std::int64_t b = 0; b < n_blocks; ++b) {
      block_columns.push_back(std::int32_t(b % 3));
      block_columns.push_back(std::int32_t((b + 1) % 3));
    }
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float>& array, std::int64_t size) {
      array.resize(size);
      for (float& v : array) v = 0.2f * normal(random);
    };
    fill(table, n_table_rows(columns, block_columns.data(), 2 * n_blocks) * kBlockLanes);
    fill(split_bias, n_blocks * kBlockLanes);
    fill(leaf_weight, m * shape().n_leaf_blocks() * k * kBlockLanes);
    moments.reserve(6);
    const auto parameter = [&](std::vector<float>& value) {
      moments.emplace_back(value.size());
      moments.emplace_back(value.size());
      return Parameter<float>{value.data(), moments[moments.size() - 2].data(), moments.back().data(), nullptr,
                              value.data()};
    };
    LookupParameters parameters{};
    parameters.table = parameter(table);
    parameters.split_bias = parameter(split_bias);
    parameters.leaf_weight = parameter(leaf_weight);
    parameters.offset = offset.data();
    const LookupSettings settings{.shape = shape(),
                                  .activation = Activation::smooth_step,
                                  .adam = {Updates::automatic, 0.9, 0.999, 1e-8, 0, 0, 0, 0},
                                  .loop = {.batch_size = 50,
                                           .seed = 3,
                                           .schedule = {0.02, 1, 0.5, 0, 1, 0.1, true, 80},
                                           .loss = {LossKind::squared_error, k, k}}};
    const LookupSamples samples{cells.data(), {y.data(), nullptr, nullptr, n, n}};
    trainer = make_lookup_trainer(settings, columns, block_columns.data(), parameters, samples, samples);
    trainer->validation_scores = scores.data();
  }
};

void check_epochs_on_any_number_of_threads(int depth) {
  std::vector<float> first_table, first_scores;
  for (const int n_threads : {1, 2, 5}) {
    Problem problem(depth);
    Control control(1e6);
    double at_first = 0;
    EpochOutcome outcome;
    for (std::int64_t epoch = 0; epoch < 10; ++epoch) {
      outcome = problem.trainer->run_epoch(epoch, control, n_threads);
      if (epoch == 0) at_first = outcome.validation_loss;
    }
    CHECK(outcome.status == EpochOutcome::Status::completed && outcome.steps_done == 8);
    CHECK(outcome.validation_loss < 0.5 * at_first);
    CHECK(outcome.mean_reachable_leaves >= 1 && outcome.mean_reachable_leaves <= double(1 << depth));
    if (n_threads == 1) {
      first_table = problem.table;
      first_scores = problem.scores;
    } else {
      CHECK(problem.table == first_table && problem.scores == first_scores);
    }
  }
}

// The table of cells is the caller's, who may have changed it since it was checked.
void check_wrong_entries_are_refused() {
  Problem problem(4);
  Control control(1e6);
  problem.cells[5 * Problem::q + 1] = 4;  // of entries 0 to 3
  bool thrown = false;
  try {
    problem.trainer->run_epoch(0, control, 1);
  } catch (const std::out_of_range&) {
    thrown = true;
  }
  CHECK(thrown);
}

// Blocks that no sample reaches are not visited.
void check_walk() {
  Problem problem(9);
  const LookupLayout layout(problem.shape(), problem.columns, problem.block_columns.data(), true);
  std::fill(problem.table.begin(), problem.table.end(), 0.0F);
  std::fill(problem.split_bias.begin(), problem.split_bias.end(), 10.0F);  // all samples go left everywhere
  const LookupTrainingKernels& kernels = lookup_training_kernels();
  const LookupForest forest{
      &layout,       &kernels.forward,           nullptr,    problem.table.data(),    problem.split_bias.data(),
      kernels.build, problem.leaf_weight.data(), Problem::k, Activation::smooth_step, 1.0F};
  std::vector<LookupCell> cells(Problem::n * Problem::q);
  decode_cells(problem.cells.data(), std::int64_t(cells.size()), cells.data());
  std::vector<float> lanes(Problem::n * Problem::k * kBlockLanes);
  std::vector<VisitedBlock> visits;
  Arena arena;
  walk_tree(forest, 0, cells.data(), Problem::n, {lanes.data(), nullptr, &visits}, arena);
  CHECK(visits.size() == 3 && visits[0].block == 0 && visits[1].block == 1 && visits[2].block == 3);
  CHECK(visits[2].parent == 1 && visits[2].list.count == Problem::n && visits[2].list.probability[7] == 1);
  for (std::int64_t i = 0; i < Problem::n; ++i) {
    CHECK(lanes[i * Problem::k * kBlockLanes] == problem.leaf_weight[0]);
    CHECK(lanes[i * Problem::k * kBlockLanes + 1] == 0);
  }
}

}  // namespace

int main() {
  check_blocks();
  for (const int depth : {3, 4, 6}) {
    check_epochs_on_any_number_of_threads(depth);
  }
  check_wrong_entries_are_refused();
  check_walk();
  return softwood::testing::report();
}

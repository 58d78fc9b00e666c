// Trees of lookups in training. Forward: groups of trees, cut by shape alone, write partial scores that are added in
// the order of groups. Backward and update: tree by tree, each tree owning all that it changes.
#include <algorithm>
#include <mutex>
#include <numeric>
#include <utility>

#include "lookup_layout.h"
#include "lookup_monotone.h"
#include "optimizer.h"
#include "softwood/lookup.h"
#include "softwood/thread_pool.h"

namespace softwood {
namespace {

constexpr std::int64_t kTreesPerGroup = 4;  // at least; partial scores of fewer would cost more than they save
constexpr std::int64_t kMostGroups = 8;
constexpr std::int64_t kEvaluationSlice = 256;  // samples of one task

// Memory of one tree's backward pass. Gradients and marks are zero between two uses.
struct BackwardScratch {
  LookupRows grad_values, grad_lazy, grad_leaf;
  std::vector<std::uint8_t> marked;
  std::vector<std::int32_t> touched;
  std::vector<std::int64_t> n_touched;
  std::vector<std::uint8_t> visited;  // [blocks of a tree]
  std::vector<float*> expected;       // [visits]
  Arena arena;
};

// Hands scratch memory to whichever thread needs some.
class ScratchPool {
 public:
  std::unique_ptr<BackwardScratch> take() {
    std::lock_guard lock(mutex_);
    if (free_.empty()) return nullptr;
    std::unique_ptr<BackwardScratch> scratch = std::move(free_.back());
    free_.pop_back();
    return scratch;
  }
  void give(std::unique_ptr<BackwardScratch> scratch) {
    std::lock_guard lock(mutex_);
    free_.push_back(std::move(scratch));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<BackwardScratch>> free_;
};

struct AdamSteps {
  AdamStep<float> table, bias, leaf;
};

class LookupsInTraining final : public TreesInTraining<float> {
 public:
  LookupsInTraining(const LookupSettings& settings, const std::vector<LookupColumn>& columns,
                    const std::int32_t* block_columns, const LookupParameters& parameters, const LookupSamples& train,
                    const LookupSamples& validation)
      : settings_(settings),
        parameters_(parameters),
        train_(train),
        validation_(validation),
        kernels_(lookup_training_kernels()),
        layout_(settings.shape, columns, block_columns, true),
        monotone_(settings.shape, columns, block_columns, settings.loop.loss.n_outputs),
        n_outputs_(settings.loop.loss.n_outputs),
        n_groups_(std::clamp<std::int64_t>(settings.shape.n_trees / kTreesPerGroup, 1, kMostGroups)),
        evaluated_values_(layout_.n_value_rows()),
        sorted_(layout_.n_columns()),
        fours_(layout_.n_columns()),
        visits_(settings.shape.n_trees),
        group_arena_(n_groups_) {}

  void forward(std::span<const std::int64_t> rows, double gamma, float* scores, int n_threads) override {
    n_samples_ = static_cast<std::int64_t>(rows.size());
    gamma_ = float(gamma);
    cells_.resize(rows.size() * layout_.n_columns());
    decode_rows(train_.cells, layout_.columns(), rows, cells_.data());
    const LookupForest forest = this->forest(gamma_, false);
    const std::int64_t n_scores = n_samples_ * n_outputs_;
    partial_scores_.resize(n_groups_ * n_scores);
    const std::int64_t n_columns = layout_.n_columns();
    parallel_for(n_groups_ + n_columns, n_threads, [&](std::int64_t task) {
      if (task >= n_groups_) return sort_samples(task - n_groups_);
      const std::int64_t group = task;
      Arena& arena = group_arena_[group];
      arena.clear();
      float* const lanes = arena.allocate<float>(n_scores * kBlockLanes);
      std::fill_n(lanes, n_scores * kBlockLanes, 0.0F);
      for (std::int64_t tree = first_tree(group); tree < first_tree(group + 1); ++tree) {
        visits_[tree].clear();
        walk_tree(forest, tree, cells_.data(), n_samples_, {lanes, nullptr, &visits_[tree]}, arena);
      }
      kernels_.forward.sum_lanes(lanes, n_scores, partial_scores_.data() + group * n_scores);
    });
    for (std::int64_t i = 0; i < n_scores; ++i) {
      float total = partial_scores_[i];
      for (std::int64_t group = 1; group < n_groups_; ++group) total += partial_scores_[group * n_scores + i];
      scores[i] = total + parameters_.offset[i % n_outputs_];
    }
  }

  void backward(const float* gradient, double learning_rate, std::int64_t step, int n_threads) override {
    const AdamSettings& adam = settings_.adam;
    const AdamSteps steps{
        adam_coefficients<float>(adam, step, learning_rate, adam.l1, adam.l2, adam.split_weight_decay),
        adam_coefficients<float>(adam, step, learning_rate, 0, 0, 0),
        adam_coefficients<float>(adam, step, learning_rate, 0, 0, adam.weight_decay)};
    parallel_for(settings_.shape.n_trees, n_threads, [&](std::int64_t tree) {
      std::unique_ptr<BackwardScratch> scratch = scratch_.take();
      if (scratch == nullptr) scratch = make_scratch();
      backward_tree(tree, gradient, steps, step, *scratch);
      scratch_.give(std::move(scratch));
      if (monotone_.is_needed()) {
        monotone_.project(tree, parameters_.table.value, parameters_.leaf_weight.value);
      }
    });
  }

  void end_epoch(std::int64_t step, int n_threads) override {
    if (averaging()) read_averages(step);
    const LookupForest forest = this->forest(1, true);
    const std::int64_t n_blocks = settings_.shape.n_blocks();
    parallel_for(settings_.shape.n_trees, n_threads, [&](std::int64_t tree) {
      if (monotone_.is_needed()) {  // the averages are of parameters before they were projected
        monotone_.project(tree, parameters_.table.evaluated, parameters_.leaf_weight.evaluated);
      }
      for (std::int64_t b = tree * n_blocks; b < (tree + 1) * n_blocks; ++b) {
        kernels_.build(layout_.view(b, forest.table), forest.bias + b * kBlockLanes,
                       evaluated_values_.row(layout_.block(b).value_begin));
      }
    });
  }

  void evaluate(Part part, std::span<const std::int64_t> rows, double gamma, float* scores, int n_threads) override {
    evaluate(part, rows, gamma, scores, nullptr, n_threads);
  }

  double mean_reachable_leaves(std::span<const std::int64_t> rows, double gamma, int n_threads) override {
    std::vector<float> scores(rows.size() * n_outputs_);
    std::vector<std::int32_t> leaves(rows.size());
    evaluate(Part::train, rows, gamma, scores.data(), leaves.data(), n_threads);
    const double total = std::accumulate(leaves.begin(), leaves.end(), 0.0);
    return total / double(rows.size()) / double(settings_.shape.n_trees);
  }

 private:
  bool averaging() const { return settings_.adam.average_decay > 0; }
  std::int64_t first_tree(std::int64_t group) const { return group * settings_.shape.n_trees / n_groups_; }

  // For the backward pass.
  void sort_samples(std::int64_t column) {
    const LookupColumn& of = layout_.columns()[column];
    if (of.lazy) return;
    sorted_[column].sort(cells_.data(), n_samples_, layout_.n_columns(), column, of.n_entries);
    fours_[column] = sorted_[column].fours();
  }

  LookupForest forest(float gamma, bool evaluating) const {
    const auto values = [evaluating](const Parameter<float>& of) { return evaluating ? of.evaluated : of.value; };
    return {.layout = &layout_,
            .kernels = &kernels_.forward,
            .values = evaluating ? evaluated_values_.data() : nullptr,
            .table = values(parameters_.table),
            .bias = values(parameters_.split_bias),
            .build = evaluating ? nullptr : kernels_.build,
            .leaf_weight = values(parameters_.leaf_weight),
            .n_outputs = n_outputs_,
            .activation = settings_.activation,
            .gamma = gamma};
  }

  void read_averages(std::int64_t step) const {
    const auto read = [&](const Parameter<float>& parameter, std::int64_t n_rows, std::int64_t n_columns,
                          const std::int64_t* row_step) {
      training_kernels<float>().read_average(parameter, n_rows, n_columns, row_step, step,
                                             settings_.adam.average_decay);
    };
    read(parameters_.table, layout_.n_table_rows(), kBlockLanes, parameters_.table_step);
    read(parameters_.split_bias, layout_.n_blocks(), kBlockLanes, parameters_.split_step);
    read(parameters_.leaf_weight, settings_.shape.n_trees * settings_.shape.n_leaf_blocks(), n_outputs_ * kBlockLanes,
         parameters_.leaf_step);
  }

  // Writes the scores of rows of a table, and adds to `leaves`, unless it is null, how many each of them reaches.
  void evaluate(Part part, std::span<const std::int64_t> rows, double gamma, float* scores, std::int32_t* leaves,
                int n_threads) {
    const LookupSamples& samples = part == Part::train ? train_ : validation_;
    const auto n = static_cast<std::int64_t>(rows.size());
    const LookupForest forest = this->forest(float(gamma), true);
    parallel_for((n + kEvaluationSlice - 1) / kEvaluationSlice, n_threads, [&](std::int64_t slice) {
      const std::int64_t first = slice * kEvaluationSlice, count = std::min(kEvaluationSlice, n - first);
      Arena arena;
      LookupCell* const cells = arena.allocate<LookupCell>(count * layout_.n_columns());
      decode_rows(samples.cells, layout_.columns(), rows.subspan(first, count), cells);
      score_samples(forest, cells, count, parameters_.offset, scores + first * n_outputs_,
                    leaves != nullptr ? leaves + first : nullptr, arena);
    });
  }

  std::unique_ptr<BackwardScratch> make_scratch() const {
    auto scratch = std::make_unique<BackwardScratch>();
    scratch->grad_values = LookupRows(layout_.most_value_rows());
    scratch->grad_leaf = LookupRows(n_outputs_);
    const std::int64_t n_lazy = layout_.most_lazy_slots();
    if (n_lazy > 0) {
      scratch->grad_lazy = LookupRows(layout_.most_table_rows());
      scratch->marked.resize(layout_.most_table_rows());
    }
    scratch->n_touched.resize(n_lazy);
    scratch->visited.resize(settings_.shape.n_blocks());
    return scratch;
  }

  // From the last visit to the first: children before their parents.
  void backward_tree(std::int64_t tree, const float* gradient, const AdamSteps& steps, std::int64_t step,
                     BackwardScratch& scratch) {
    const std::vector<VisitedBlock>& visits = visits_[tree];
    const LookupForest forest = this->forest(gamma_, false);
    scratch.touched.resize(layout_.most_lazy_slots() * n_samples_);
    scratch.expected.resize(visits.size());
    std::fill(scratch.visited.begin(), scratch.visited.end(), 0);
    for (std::size_t i = 0; i < visits.size(); ++i) {
      if (forest.is_leaf(visits[i].block)) continue;
      const std::int64_t n_floats = visits[i].list.count * kBlockLanes;
      scratch.expected[i] = scratch.arena.allocate<float>(n_floats);
      std::fill_n(scratch.expected[i], n_floats, 0.0F);
    }
    LookupBackward out{.t = nullptr,
                       .grad_t = scratch.arena.allocate<float>((n_samples_ + 1) * kBlockLanes),
                       .active = scratch.arena.allocate<std::int32_t>(n_samples_),
                       .is_active = scratch.arena.allocate<std::uint8_t>(n_samples_),
                       .fours = fours_.data(),
                       .grad_scores = gradient,
                       .grad_leaf = scratch.grad_leaf.data(),
                       .expected = nullptr,
                       .expected_here = nullptr,
                       .parent_entry = nullptr,
                       .grad_values = scratch.grad_values.data(),
                       .grad_lazy = scratch.grad_lazy.data(),
                       .touched = scratch.touched.data(),
                       .touched_stride = n_samples_,
                       .n_touched = scratch.n_touched.data(),
                       .marked = scratch.marked.data()};
    for (std::size_t i = visits.size(); i-- > 0;) {
      const VisitedBlock& visited = visits[i];
      out.t = visited.t;
      out.expected = scratch.expected[i];
      out.parent_entry = visited.parent_entry;
      out.expected_here = visited.parent >= 0 ? scratch.expected[visited.parent] + visited.lane : nullptr;
      kernels_.backward(forest.visit(tree, visited.block, cells_.data(), visited.list), out);
      update(tree, visited.block, steps, step, out);
      scratch.visited[visited.block] = 1;
    }
    scratch.arena.clear();
    const std::int64_t n_blocks = settings_.shape.n_blocks(), n_visited = std::int64_t(visits.size());
    const Updates updates = settings_.adam.updates;
    if (updates == Updates::lazy || (updates == Updates::automatic && 2 * n_visited < n_blocks)) return;
    for (std::int64_t block = 0; block < n_blocks; ++block) {
      if (scratch.visited[block] == 0) update(tree, block, steps, step, out);
    }
  }

  void update(std::int64_t tree, std::int64_t block, const AdamSteps& steps, std::int64_t step,
              const LookupBackward& gradients) {
    const std::int64_t number = tree * settings_.shape.n_blocks() + block;
    const LookupLayout::Block& at = layout_.block(number);
    const LookupForest forest = this->forest(gamma_, false);
    const auto elements = [](const Parameter<float>& p, std::int64_t first) {
      return Elements<float>{p.value + first, nullptr, p.first_moment + first, p.second_moment + first,
                             p.average != nullptr ? p.average + first : nullptr};
    };
    const std::int64_t leaf = forest.is_leaf(block) ? forest.leaf_block(tree, block) : -1;
    const bool averages = averaging();
    kernels_.update(
        layout_.view(number, parameters_.table.value),
        {.table_step = steps.table,
         .bias_step = steps.bias,
         .leaf_step = steps.leaf,
         .table = elements(parameters_.table, at.table_begin * kBlockLanes),
         .bias = elements(parameters_.split_bias, number * kBlockLanes),
         .leaf = leaf >= 0 ? elements(parameters_.leaf_weight, leaf * n_outputs_ * kBlockLanes) : Elements<float>{},
         .n_outputs = n_outputs_,
         .n_value_rows = at.n_value_rows,
         .backward = &gradients,
         .average_decay = settings_.adam.average_decay,
         .step = step,
         .table_written = averages ? parameters_.table_step + at.table_begin : nullptr,
         .bias_written = averages ? parameters_.split_step + number : nullptr,
         .leaf_written = averages && leaf >= 0 ? parameters_.leaf_step + leaf : nullptr});
  }

  const LookupSettings settings_;
  const LookupParameters parameters_;
  const LookupSamples train_, validation_;
  const LookupTrainingKernels& kernels_;
  const LookupLayout layout_;
  const LookupMonotone monotone_;
  const std::int64_t n_outputs_, n_groups_;
  LookupRows evaluated_values_;  // rebuilt after each epoch
  ScratchPool scratch_;
  std::vector<float> partial_scores_;
  // Of the last batch.
  std::int64_t n_samples_ = 0;
  float gamma_ = 1;
  std::vector<LookupCell> cells_;
  std::vector<SortedSamples> sorted_;              // [q]
  std::vector<LookupFours> fours_;                 // [q]: views of these
  std::vector<std::vector<VisitedBlock>> visits_;  // [trees]
  std::vector<Arena> group_arena_;                 // memory of the visits
};

}  // namespace

std::unique_ptr<Trainer<float>> make_lookup_trainer(const LookupSettings& settings,
                                                    const std::vector<LookupColumn>& columns,
                                                    const std::int32_t* block_columns,
                                                    const LookupParameters& parameters, const LookupSamples& train,
                                                    const LookupSamples& validation) {
  return std::make_unique<Trainer<float>>(
      settings.loop, train.labels, validation.labels,
      std::make_unique<LookupsInTraining>(settings, columns, block_columns, parameters, train, validation));
}

namespace {

template <typename Count>
std::int64_t sum_over(const std::vector<LookupColumn>& columns, const std::int32_t* block_columns, std::int64_t n,
                      const Count& count) {
  std::int64_t total = 0;
  for (std::int64_t i = 0; i < n; ++i) total += count(columns[block_columns[i]]);
  return total;
}

}  // namespace

std::int64_t n_table_rows(const std::vector<LookupColumn>& columns, const std::int32_t* block_columns,
                          std::int64_t n_block_columns_in_all) {
  return sum_over(columns, block_columns, n_block_columns_in_all,
                  [](const LookupColumn& column) { return column.n_parameters(); });
}

std::int64_t n_value_rows(const std::vector<LookupColumn>& columns, const std::int32_t* block_columns,
                          std::int64_t n_block_columns_in_all) {
  return sum_over(columns, block_columns, n_block_columns_in_all,
                  [](const LookupColumn& column) { return column.n_entries; });
}

void lookup_values(const std::vector<LookupColumn>& columns, const std::int32_t* block_columns,
                   std::int64_t n_block_columns_in_all, const float* table, float* values, int n_threads) {
  std::vector<std::int64_t> table_row(n_block_columns_in_all), value_row(n_block_columns_in_all);
  std::int64_t next_table = 0, next_value = 0;
  for (std::int64_t i = 0; i < n_block_columns_in_all; ++i) {
    table_row[i] = std::exchange(next_table, next_table + columns[block_columns[i]].n_parameters());
    value_row[i] = std::exchange(next_value, next_value + columns[block_columns[i]].n_entries);
  }
  parallel_for(n_block_columns_in_all, n_threads, [&](std::int64_t i) {
    lookup_training_kernels().build_column(columns[block_columns[i]], table + table_row[i] * kBlockLanes,
                                           values + value_row[i] * kBlockLanes);
  });
}

}  // namespace softwood

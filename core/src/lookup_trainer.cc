// Trees of lookups in training. Forward: groups of trees, cut by shape alone, write partial scores that are added in
// the order of groups. Backward and update: tree by tree, each tree owning all that it changes.
#include <algorithm>
#include <mutex>
#include <numeric>
#include <utility>

#include "lookup_layout.h"
#include "optimizer.h"
#include "softwood/lookup.h"
#include "softwood/thread_pool.h"

namespace softwood {
namespace {

constexpr std::int64_t kTreesPerGroup = 4;  // at least; partial scores of fewer would cost more than they save
constexpr std::int64_t kMostGroups = 8;
// Samples whose partial scores stay in the first-level cache while tree after tree adds to them.
constexpr std::int64_t kChunkScores = 256;
constexpr std::int64_t kLeastChunk = 64;

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
        n_outputs_(settings.loop.loss.n_outputs),
        n_groups_(std::clamp<std::int64_t>(settings.shape.n_trees / kTreesPerGroup, 1, kMostGroups)),
        values_(layout_.n_value_rows()),
        visits_(settings.shape.n_trees),
        group_arena_(n_groups_) {
    if (averaging()) evaluated_values_ = LookupRows(layout_.n_value_rows());
  }

  void begin_epoch(int n_threads) override {
    build(parameters_.table.value, parameters_.split_bias.value, values_, n_threads);
  }

  void forward(std::span<const std::int64_t> rows, double gamma, float* scores, int n_threads) override {
    n_samples_ = static_cast<std::int64_t>(rows.size());
    gamma_ = float(gamma);
    cells_.resize(rows.size() * layout_.n_columns());
    decode_cells(train_.cells, layout_.n_columns(), rows, cells_.data());
    const LookupForest forest = this->forest(gamma_, false);
    add_groups(n_samples_, scores, n_threads, [&](std::int64_t group, float* lanes) {
      Arena& arena = group_arena_[group];
      arena.clear();
      for (std::int64_t tree = first_tree(group); tree < first_tree(group + 1); ++tree) visits_[tree].clear();
      walk_group(forest, group, cells_.data(), n_samples_, lanes, nullptr, &visits_, arena);
    });
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
    });
  }

  void read_averages(std::int64_t step) override {
    if (!averaging()) return;
    const auto read = [&](const Parameter<float>& parameter, std::int64_t n_rows, std::int64_t n_columns,
                          const std::int64_t* row_step) {
      training_kernels<float>().read_average(parameter, n_rows, n_columns, row_step, step,
                                             settings_.adam.average_decay);
    };
    const LookupShape& shape = settings_.shape;
    read(parameters_.table, layout_.n_table_rows(), kBlockLanes, parameters_.table_step);
    read(parameters_.split_bias, layout_.n_blocks(), kBlockLanes, parameters_.split_step);
    read(parameters_.leaf_weight, shape.n_trees * shape.n_leaf_blocks(), n_outputs_ * kBlockLanes,
         parameters_.leaf_step);
    build(parameters_.table.evaluated, parameters_.split_bias.evaluated, evaluated_values_, 1);
  }

  void evaluate(Part part, std::span<const std::int64_t> rows, double gamma, float* scores, int n_threads) override {
    evaluate(part, rows, gamma, scores, nullptr, n_threads);
  }

  double mean_reachable_leaves(std::span<const std::int64_t> rows, double gamma, int n_threads) override {
    std::vector<float> scores(rows.size() * n_outputs_);
    std::vector<std::int32_t> leaves(n_groups_ * rows.size());
    evaluate(Part::train, rows, gamma, scores.data(), leaves.data(), n_threads);
    const double total = std::accumulate(leaves.begin(), leaves.end(), 0.0);
    return total / double(rows.size()) / double(settings_.shape.n_trees);
  }

 private:
  bool averaging() const { return settings_.adam.average_decay > 0; }
  std::int64_t first_tree(std::int64_t group) const { return group * settings_.shape.n_trees / n_groups_; }

  LookupForest forest(float gamma, bool evaluating) const {
    const auto& leaf = parameters_.leaf_weight;
    const auto& table = parameters_.table;
    return {.layout = &layout_,
            .kernels = &kernels_.forward,
            .values = evaluating && averaging() ? evaluated_values_.data() : values_.data(),
            .table = evaluating ? table.evaluated : table.value,
            .leaf_weight = evaluating ? leaf.evaluated : leaf.value,
            .n_outputs = n_outputs_,
            .activation = settings_.activation,
            .gamma = gamma};
  }

  void build(const float* table, const float* bias, LookupRows& values, int n_threads) {
    const std::int64_t n_blocks = settings_.shape.n_blocks();
    parallel_for(settings_.shape.n_trees, n_threads, [&](std::int64_t tree) {
      for (std::int64_t b = tree * n_blocks; b < (tree + 1) * n_blocks; ++b) {
        const LookupLayout::Block& block = layout_.block(b);
        kernels_.build(layout_.view(b, values.data(), table), table + block.table_begin * kBlockLanes,
                       bias + b * kBlockLanes, values.row(block.value_begin));
      }
    });
  }

  void evaluate(Part part, std::span<const std::int64_t> rows, double gamma, float* scores, std::int32_t* leaves,
                int n_threads) {
    const LookupSamples& samples = part == Part::train ? train_ : validation_;
    const auto n = static_cast<std::int64_t>(rows.size());
    std::vector<LookupCell> cells(rows.size() * layout_.n_columns());
    decode_cells(samples.cells, layout_.n_columns(), rows, cells.data());
    const LookupForest forest = this->forest(float(gamma), true);
    add_groups(n, scores, n_threads, [&](std::int64_t group, float* lanes) {
      Arena arena;
      walk_group(forest, group, cells.data(), n, lanes, leaves != nullptr ? leaves + group * n : nullptr, nullptr,
                 arena);
    });
  }

  // scores [n, k] = offset + the sum over groups of what `walk(group, lanes)` adds to lanes [n, k, 16].
  template <typename Walk>
  void add_groups(std::int64_t n, float* scores, int n_threads, const Walk& walk) {
    const std::int64_t n_scores = n * n_outputs_;
    partial_scores_.resize(n_groups_ * n_scores);
    parallel_for(n_groups_, n_threads, [&](std::int64_t group) {
      Arena arena;
      float* const lanes = arena.allocate<float>(n_scores * kBlockLanes);
      std::fill_n(lanes, n_scores * kBlockLanes, 0.0F);
      walk(group, lanes);
      kernels_.forward.sum_lanes(lanes, n_scores, partial_scores_.data() + group * n_scores);
    });
    for (std::int64_t i = 0; i < n_scores; ++i) {
      float total = partial_scores_[i];
      for (std::int64_t group = 1; group < n_groups_; ++group) total += partial_scores_[group * n_scores + i];
      scores[i] = total + parameters_.offset[i % n_outputs_];
    }
  }

  void walk_group(const LookupForest& forest, std::int64_t group, const LookupCell* cells, std::int64_t n, float* lanes,
                  std::int32_t* leaves, std::vector<std::vector<VisitedBlock>>* visits, Arena& arena) {
    const std::int64_t begin = first_tree(group), end = first_tree(group + 1);
    if (settings_.shape.n_block_levels() > 1) {
      for (std::int64_t tree = begin; tree < end; ++tree) {
        walk_tree(forest, tree, cells, n, {lanes, leaves, visits != nullptr ? &(*visits)[tree] : nullptr}, arena);
      }
      return;
    }
    std::vector<float*> t(end - begin);
    if (visits != nullptr) {
      for (std::int64_t tree = begin; tree < end; ++tree) {
        t[tree - begin] = arena.allocate<float>(n * kBlockLanes);
        (*visits)[tree].push_back({0, -1, 0, {n, nullptr, nullptr}, nullptr, t[tree - begin]});
      }
    }
    const std::int64_t chunk = std::max(kLeastChunk, kChunkScores / n_outputs_);
    for (std::int64_t first = 0; first < n; first += chunk) {
      const std::int64_t count = std::min(chunk, n - first);
      for (std::int64_t tree = begin; tree < end; ++tree) {
        LookupForward out{};
        if (visits != nullptr) out.t = t[tree - begin] + first * kBlockLanes;
        out.scores = lanes + first * n_outputs_ * kBlockLanes;
        if (leaves != nullptr) out.leaves = leaves + first;
        kernels_.forward.forward(forest.visit(tree, 0, cells + first * layout_.n_columns(), {count, nullptr, nullptr}),
                                 out);
      }
    }
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
        layout_.view(number, values_.data(), parameters_.table.value),
        {.table_step = steps.table,
         .bias_step = steps.bias,
         .leaf_step = steps.leaf,
         .table = elements(parameters_.table, at.table_begin * kBlockLanes),
         .bias = elements(parameters_.split_bias, number * kBlockLanes),
         .leaf = leaf >= 0 ? elements(parameters_.leaf_weight, leaf * n_outputs_ * kBlockLanes) : Elements<float>{},
         .n_outputs = n_outputs_,
         .values = values_.row(at.value_begin),
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
  const std::int64_t n_outputs_, n_groups_;
  LookupRows values_, evaluated_values_;
  ScratchPool scratch_;
  std::vector<float> partial_scores_;
  // Of the last batch.
  std::int64_t n_samples_ = 0;
  float gamma_ = 1;
  std::vector<LookupCell> cells_;
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

// Trees with linear splits in training: the rows of a batch side by side, normalised, then the two passes of
// softwood/ensemble.h and the optimiser. Nothing is allocated once an epoch runs but what the tape takes from its pool.
#include <algorithm>
#include <utility>

#include "batch_norm.h"
#include "optimizer.h"
#include "softwood/trainer.h"

namespace softwood {
namespace {

template <typename T>
class EnsembleInTraining final : public TreesInTraining<T> {
 public:
  EnsembleInTraining(MemberSettings<T> settings, const Parameters<T>& parameters, const Samples<T>& train,
                     const Samples<T>& validation)
      : settings_(std::move(settings)),
        parameters_(parameters),
        train_(train),
        validation_(validation),
        batch_norm_(settings_.normalisation, settings_.n_features, settings_.normalisation_epsilon, parameters_),
        optimizer_(settings_, parameters_) {}

  void forward(std::span<const std::int64_t> rows, double gamma, T* scores, int n_threads) override {
    read(train_, rows, batch_);
    const auto n = static_cast<std::int64_t>(rows.size());
    inputs_ = {batch_norm_.training(batch_.x.data(), n, batch_.normalised.data()), n, settings_.n_features};
    gamma_ = gamma;
    softwood::forward(ensemble(gamma, false), inputs_, true, scores, &tape_, n_threads);
    add_offset(n, scores);
  }

  void backward(const T* gradient, double learning_rate, std::int64_t step, int n_threads) override {
    Gradients<T> gradients = optimizer_.gradients();
    const T* scale_gradient = nullptr;
    if (batch_norm_.needs_input_gradient()) {
      input_gradient_.resize(batch_.x.size());
      gradients.x = input_gradient_.data();
    }
    softwood::backward(ensemble(gamma_, false), inputs_, true, gradient, &tape_, gradients, n_threads);
    if (gradients.x != nullptr) {
      scale_gradient = batch_norm_.scale_gradient(batch_.x.data(), inputs_.n_rows, gradients.x);
    }
    optimizer_.update(step, learning_rate, scale_gradient, n_threads);
  }

  void end_epoch(std::int64_t step, int /*n_threads*/) override { optimizer_.read_averages(step); }

  void evaluate(Part part, std::span<const std::int64_t> rows, double gamma, T* scores, int n_threads) override {
    const Rows<T> inputs = evaluation_inputs(part == Part::train ? train_ : validation_, rows);
    softwood::forward<T>(ensemble(gamma, true), inputs, true, scores, nullptr, n_threads);
    add_offset(inputs.n_rows, scores);
  }

  double mean_reachable_leaves(std::span<const std::int64_t> rows, double gamma, int n_threads) override {
    const Rows<T> inputs = evaluation_inputs(train_, rows);
    std::vector<std::int32_t> leaves(rows.size() * settings_.n_trees), internal_nodes(leaves.size()),
        fractional_nodes(leaves.size());
    reachability(ensemble(gamma, true), inputs, leaves.data(), internal_nodes.data(), fractional_nodes.data(),
                 n_threads);
    std::int64_t total = 0;
    for (const std::int32_t count : leaves) total += count;
    return double(total) / double(leaves.size());
  }

 private:
  struct Inputs {
    std::vector<T> x, normalised;
  };

  void read(const Samples<T>& samples, std::span<const std::int64_t> rows, Inputs& inputs) const {
    const std::size_t p = settings_.n_features, size = rows.size() * p;
    if (inputs.x.size() < size) {
      inputs.x.resize(size);
      inputs.normalised.resize(size);
    }
    for (std::size_t i = 0; i < rows.size(); ++i) samples.read(rows[i], settings_.n_features, inputs.x.data() + i * p);
  }

  Rows<T> evaluation_inputs(const Samples<T>& samples, std::span<const std::int64_t> rows) {
    read(samples, rows, held_out_);
    const auto n = static_cast<std::int64_t>(rows.size());
    return {batch_norm_.evaluation(held_out_.x.data(), n, held_out_.normalised.data()), n, settings_.n_features};
  }

  void add_offset(std::int64_t n, T* scores) const {
    const std::int64_t k = settings_.loss.n_outputs;
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t j = 0; j < k; ++j) scores[i * k + j] += parameters_.offset[j];
    }
  }

  Ensemble<T> ensemble(double gamma, bool evaluating) const {
    const auto values = [evaluating](const Parameter<T>& of) { return evaluating ? of.evaluated : of.value; };
    return {values(parameters_.split_weight),
            values(parameters_.split_bias),
            values(parameters_.leaf_weight),
            settings_.n_trees,
            settings_.n_features,
            settings_.loss.n_outputs,
            settings_.depth,
            settings_.activation,
            T(gamma)};
  }

  const MemberSettings<T> settings_;
  const Parameters<T> parameters_;
  const Samples<T> train_, validation_;
  BatchNorm<T> batch_norm_;
  Optimizer<T> optimizer_;
  Inputs batch_, held_out_;
  Rows<T> inputs_{};               // of the last batch, normalised
  double gamma_ = 1;               // of the last batch
  std::vector<T> input_gradient_;  // seldom needed
  Tape<T> tape_;
};

}  // namespace

template <typename T>
Trainer<T>::Trainer(MemberSettings<T> settings, const Parameters<T>& parameters, const Samples<T>& train,
                    const Samples<T>& validation)
    : Trainer({settings.batch_size, settings.seed, settings.schedule, settings.loss}, train.labels(),
              validation.labels(), std::make_unique<EnsembleInTraining<T>>(settings, parameters, train, validation)) {}

template Trainer<float>::Trainer(MemberSettings<float>, const Parameters<float>&, const Samples<float>&,
                                 const Samples<float>&);
template Trainer<double>::Trainer(MemberSettings<double>, const Parameters<double>&, const Samples<double>&,
                                  const Samples<double>&);

}  // namespace softwood

#include "plan_projection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "planner.h"

namespace embermesh {
namespace {

using Floats = std::vector<float>;

// Three features of two tables; the last column belongs to none.
PlannerConfig shape(std::vector<std::uint32_t> dims, std::uint32_t shards) {
  const std::uint32_t a = dims[0], b = dims[1];
  std::vector<std::uint16_t> owners(8);
  for (std::size_t i = 0; i < owners.size(); ++i) {
    owners[i] = static_cast<std::uint16_t>(i % shards);
  }
  return {.feature_tables = {0, 1, 0},
          .dims = std::move(dims),
          .columns = {3, 3 + a, 3 + a + b},
          .combiners = {Combiner::kSum, Combiner::kMean, Combiner::kSqrtN},
          .owners = std::move(owners),
          .shards = shards,
          .width = 3 + 2 * std::size_t{a} + b + 1};
}

// A batch with its layer, and the products over its gathered rows in double precision.
class Batch {
 public:
  Batch(const PlannerConfig& config, std::size_t samples, bool bags, std::size_t units)
      : samples_(samples), units_(units), width_(config.width), planner_(config) {
    std::mt19937 random(7);
    std::vector<std::uint64_t> keys;
    offsets_.push_back(0);
    for (std::size_t bag = 0; bag < config.feature_tables.size() * samples; ++bag) {
      const std::size_t count = bags ? random() % 4 : 1;
      for (std::size_t i = 0; i < count; ++i) keys.push_back(random() % (2 + samples / 3));
      offsets_.push_back(static_cast<std::int32_t>(keys.size()));
    }
    keys_ = std::move(keys);
    plan_ = planner_.plan(keys_, offsets_, static_cast<std::int64_t>(samples));
    // Of its key, wherever the row lies.
    values_.resize(plan_.total_floats());
    std::size_t at = 0, position = 0;
    for (std::size_t part = 0; part < plan_.counts().size(); ++part) {
      const std::size_t dim = config.dims[part % config.dims.size()];
      for (std::uint32_t i = 0; i < plan_.counts()[part]; ++i, ++position) {
        std::mt19937 own(static_cast<unsigned>(plan_.unique()[position]) + 1);
        for (std::size_t k = 0; k < dim; ++k) values_[at++] = drawn(own);
      }
    }
    for (Floats* floats : {&dense, &weights, &bias, &grads}) {
      floats->resize(floats == &dense     ? samples * kDense
                     : floats == &weights ? width_ * units
                     : floats == &bias    ? units
                                          : samples * units);
      for (float& value : *floats) value = drawn(random);
    }
  }

  static constexpr std::size_t kDense = 2;  // column 2 is no feature's

  [[nodiscard]] const Plan& plan() const { return plan_; }
  [[nodiscard]] const Floats& values() const { return values_; }
  [[nodiscard]] Layer<const float> layer() const {
    return {weights.data(), bias.data(), units_, relu};
  }

  // X (samples, width): dense features and gathered rows, zeros else.
  [[nodiscard]] Floats inputs() const {
    Floats matrix(samples_ * width_, 0.0F);
    plan_.gather(values_.data(), matrix.data());
    for (std::size_t b = 0; b < samples_; ++b) {
      for (std::size_t c = 0; c < kDense; ++c) matrix[b * width_ + c] = dense[b * kDense + c];
    }
    return matrix;
  }

  Floats dense, weights, bias, grads;
  bool relu = false;

 private:
  static float drawn(std::mt19937& random) {
    return std::uniform_real_distribution<float>(-1.0F, 1.0F)(random);
  }

  std::size_t samples_, units_, width_;
  Planner planner_;
  std::vector<std::uint64_t> keys_;
  std::vector<std::int32_t> offsets_;
  Plan plan_;
  Floats values_;
};

// What a projection gives, of the whole batch, piece after piece.
struct Results {
  Floats out, weight_grads, bias_grads, row_grads;
  float checksum = 0.0F;
};

Results project(const Batch& batch, std::size_t units, std::size_t size) {
  const std::size_t samples = batch.plan().batch(), width = batch.plan().config().width;
  Results results{.out = Floats(samples * units, -7.0F),
                  .weight_grads = Floats(width * units),
                  .bias_grads = Floats(units),
                  .row_grads = Floats(batch.plan().total_floats())};
  Projection projection;
  for (std::size_t first = 0; first < samples; first += size) {
    const std::size_t rows = std::min(size, samples - first);
    projection.take(batch.plan(), first, rows, batch.values().data(),
                    batch.dense.data() + first * Batch::kDense, Batch::kDense);
    projection.forward(batch.layer(), results.out.data() + first * units);
    Floats weight_grads(width * units, -7.0F), bias_grads(units, -7.0F);
    results.checksum += projection.backward(batch.layer(), results.out.data() + first * units,
                                            batch.grads.data() + first * units,
                                            {weight_grads.data(), bias_grads.data(), units});
    projection.add_to(results.row_grads.data());
    for (std::size_t i = 0; i < weight_grads.size(); ++i) {
      results.weight_grads[i] += weight_grads[i];
    }
    for (std::size_t i = 0; i < units; ++i) results.bias_grads[i] += bias_grads[i];
  }
  return results;
}

void expect_near(const Floats& got, const std::vector<double>& expected, const char* what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], expected[i], 1e-5 * (1.0 + std::abs(expected[i]))) << what << " " << i;
  }
}

void expect_products(const Batch& batch, std::size_t units, const Results& results) {
  const std::size_t samples = batch.plan().batch(), width = batch.plan().config().width;
  const Floats inputs = batch.inputs();
  std::vector<double> out(samples * units), weight_grads(width * units), bias_grads(units);
  std::vector<float> input_grads(samples * width);
  Floats grads = batch.grads;
  for (std::size_t i = 0; i < grads.size(); ++i) {
    if (batch.relu && results.out[i] <= 0.0F) grads[i] = 0.0F;
  }
  for (std::size_t b = 0; b < samples; ++b) {
    for (std::size_t n = 0; n < units; ++n) {
      out[b * units + n] = batch.bias[n];
      bias_grads[n] += grads[b * units + n];
    }
    for (std::size_t c = 0; c < width; ++c) {
      double input_grad = 0.0;
      const bool anyones = c != Batch::kDense && c + 1 != width;
      for (std::size_t n = 0; anyones && n < units; ++n) {
        const double weight = batch.weights[c * units + n], grad = grads[b * units + n];
        out[b * units + n] += inputs[b * width + c] * weight;
        weight_grads[c * units + n] += inputs[b * width + c] * grad;
        input_grad += weight * grad;
      }
      input_grads[b * width + c] = static_cast<float>(input_grad);
    }
  }
  if (batch.relu) {
    for (double& value : out) value = std::max(value, 0.0);
  }
  Floats row_grads(batch.plan().total_floats());
  batch.plan().scatter(input_grads.data(), row_grads.data());
  expect_near(results.out, out, "out");
  expect_near(results.weight_grads, weight_grads, "weight_grads");
  expect_near(results.bias_grads, bias_grads, "bias_grads");
  expect_near(results.row_grads, {row_grads.begin(), row_grads.end()}, "row_grads");
  EXPECT_NEAR(results.checksum, std::accumulate(row_grads.begin(), row_grads.end(), 0.0),
              1e-3 * (1.0 + static_cast<double>(row_grads.size())));
}

TEST(Projection, IsTheProductOfTheGatheredMatrix) {
  for (const bool bags : {false, true}) {
    for (const std::size_t units : {1, 16, 64, 100, 130}) {
      for (const std::vector<std::uint32_t>& dims :
           std::vector<std::vector<std::uint32_t>>{{16, 16}, {4, 20}, {33, 1}}) {
        Batch batch(shape(dims, 2), 77, bags, units);
        for (const bool relu : {false, true}) {
          batch.relu = relu;
          expect_products(batch, units, project(batch, units, 77));
          expect_products(batch, units, project(batch, units, 30));
        }
      }
    }
  }
}

TEST(Projection, NumberOfShardsChangesNoBit) {
  const Batch one(shape({16, 8}, 1), 90, true, 48), four(shape({16, 8}, 4), 90, true, 48);
  const Results a = project(one, 48, 90), b = project(four, 48, 90);
  EXPECT_EQ(a.out, b.out);
  EXPECT_EQ(a.weight_grads, b.weight_grads);
  EXPECT_EQ(a.bias_grads, b.bias_grads);
}

TEST(Projection, ShorterBatchesAfterLongOnesSeeNothingStale) {
  const Batch big(shape({16, 16}, 1), 200, true, 64), small(shape({16, 16}, 1), 5, false, 64);
  const Results alone = project(small, 64, 5);
  Projection projection;
  Floats out(200 * 64), weight_grads(big.plan().config().width * 64), bias_grads(64);
  for (const Batch* batch : {&big, &small}) {
    projection.take(batch->plan(), 0, batch->plan().batch(), batch->values().data(),
                    batch->dense.data(), Batch::kDense);
    projection.forward(batch->layer(), out.data());
    (void)projection.backward(batch->layer(), out.data(), batch->grads.data(),
                              {weight_grads.data(), bias_grads.data(), 64});
  }
  out.resize(alone.out.size());
  EXPECT_EQ(out, alone.out);
  Floats sums(small.plan().total_floats());
  projection.add_to(sums.data());
  EXPECT_EQ(sums, alone.row_grads);
  EXPECT_EQ(bias_grads, alone.bias_grads);
}

TEST(Projection, NotFiniteGradientsShowInTheChecksum) {
  Batch batch(shape({16, 16}, 1), 40, false, 64);
  batch.grads[17] = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(std::isfinite(project(batch, 64, 40).checksum));
}

TEST(Projection, LayerMayHaveNoBias) {
  Batch batch(shape({16, 16}, 1), 40, false, 32);
  const Results with = project(batch, 32, 40);
  Projection projection;
  projection.take(batch.plan(), 0, 40, batch.values().data(), batch.dense.data(), Batch::kDense);
  Floats out(40 * 32), weight_grads(batch.plan().config().width * 32);
  const Layer<const float> layer{batch.weights.data(), nullptr, 32};
  projection.forward(layer, out.data());
  for (std::size_t i = 0; i < out.size(); ++i) {
    ASSERT_NEAR(out[i] + batch.bias[i % 32], with.out[i], 1e-5);
  }
  (void)projection.backward(layer, out.data(), batch.grads.data(),
                            {weight_grads.data(), nullptr, 32});
  EXPECT_EQ(weight_grads, with.weight_grads);
}

// One feature of so many keys in a batch.
Plan plan_of(std::size_t samples, std::uint64_t distinct, std::uint32_t dim) {
  const Planner planner({.feature_tables = {0},
                         .dims = {dim},
                         .columns = {0},
                         .combiners = {Combiner::kSum},
                         .owners = std::vector<std::uint16_t>(8, 0),
                         .shards = 1,
                         .width = dim});
  std::vector<std::uint64_t> keys(samples);
  for (std::size_t i = 0; i < samples; ++i) keys[i] = i % distinct;
  std::vector<std::int32_t> offsets(samples + 1);
  std::iota(offsets.begin(), offsets.end(), 0);
  return planner.plan(keys, offsets, static_cast<std::int64_t>(samples));
}

TEST(Projection, IsWorthItWhereSamplesShareKeys) {
  EXPECT_TRUE(worth_projecting(plan_of(1000, 100, 16), 256));
  EXPECT_FALSE(worth_projecting(plan_of(1000, 1000, 16), 256));
  EXPECT_FALSE(worth_projecting(plan_of(1000, 10, 1), 256));
  EXPECT_FALSE(worth_projecting(plan_of(1000, 100, 16), 8));  // of a tile of 64
  EXPECT_FALSE(worth_projecting(plan_of(0, 1, 16), 256));
}

}  // namespace
}  // namespace embermesh

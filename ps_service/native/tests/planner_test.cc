#include "planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <random>
#include <span>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

namespace embermesh {
namespace {

PlannerConfig two_features() {
  return {.feature_tables = {0, 0},
          .dims = {2},
          .columns = {0, 2},
          .combiners = {Combiner::kSum, Combiner::kMean},
          .owners = std::vector<std::uint16_t>(8, 0),
          .shards = 1,
          .width = 4};
}

template <class T>
std::vector<T> listed(std::span<const T> items) {
  return {items.begin(), items.end()};
}

TEST(Planner, FeaturesThatShareATableShareItsUniqueKeys) {
  const Planner planner(two_features());
  const std::vector<std::uint64_t> keys = {7, 0, 0, ~0ULL, 7};
  const std::vector<std::int32_t> offsets = {0, 1, 2, 5, 5};  // bags {7} {0} {0, -1, 7} {}
  const Plan plan = planner.plan(keys, offsets, 2);
  EXPECT_EQ(listed(plan.unique()), (std::vector<std::uint64_t>{7, 0, ~0ULL}));
  EXPECT_EQ(listed(plan.inverse()), (std::vector<std::int32_t>{0, 1, 1, 2, 0}));
  EXPECT_EQ(plan.counts(), (std::vector<std::uint32_t>{3}));
  EXPECT_EQ(plan.value_floats(), (std::vector<std::int64_t>{6}));

  const std::vector<float> values = {1, 10, 2, 20, 6, 60};
  std::vector<float> out(8, -1.0F);
  plan.gather(values.data(), out.data());
  EXPECT_EQ(out, (std::vector<float>{1, 10, 3, 30, 2, 20, 0, 0}));

  const std::vector<float> grads = {1, 2, 3, 6, 5, 6, 100, 100};
  std::vector<float> sums(6, -1.0F);
  plan.scatter(grads.data(), sums.data());
  EXPECT_EQ(sums, (std::vector<float>{2, 4, 6, 8, 1, 2}));
}

TEST(Planner, EmptyBatchesAreLegal) {
  const Planner planner(two_features());
  const Plan plan = planner.plan({}, std::vector<std::int32_t>{0}, 0);
  EXPECT_TRUE(plan.unique().empty());
  plan.gather(nullptr, nullptr);
  plan.scatter(nullptr, nullptr);
}

TEST(Planner, ThreadsMayShareIt) {
  const Planner planner(two_features());
  const auto work = [&planner](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    for (int round = 0; round < 50; ++round) {
      const std::size_t batch = random() % 300;
      std::vector<std::uint64_t> keys(2 * batch);
      for (auto& key : keys) key = random() % 100;
      std::vector<std::int32_t> offsets(2 * batch + 1);
      std::iota(offsets.begin(), offsets.end(), 0);
      const Plan plan = planner.plan(keys, offsets, static_cast<std::int64_t>(batch));
      for (std::size_t i = 0; i < keys.size(); ++i) {
        ASSERT_EQ(plan.unique()[static_cast<std::size_t>(plan.inverse()[i])], keys[i]);
      }
    }
  };
  std::thread other(work, 1);
  work(2);
  other.join();
}

// Three tables, the middle one of nearly all keys and of two features, so that a team cuts it.
struct BigBatch {
  PlannerConfig config{.feature_tables = {1, 0, 1, 2},
                       .dims = {16, 16, 16},
                       .columns = {0, 16, 32, 48},
                       .combiners = std::vector<Combiner>(4, Combiner::kMean),
                       .owners = std::vector<std::uint16_t>(64, 0),
                       .shards = 3,
                       .width = 64};
  std::vector<std::uint64_t> keys;
  std::vector<std::int32_t> offsets = {0};
  std::int64_t batch = 10'000;

  BigBatch(std::uint64_t seed, bool has_single_keys, std::uint32_t last_dim) {
    std::mt19937_64 random(seed);
    config.dims[2] = last_dim;
    for (auto& owner : config.owners) owner = static_cast<std::uint16_t>(random() % 3);
    for (std::size_t f = 0; f < 4; ++f) {
      const bool is_big = config.feature_tables[f] == 1;
      for (std::int64_t b = 0; b < batch; ++b) {
        const std::uint64_t size = has_single_keys ? 1 : random() % (is_big ? 4 : 2);
        for (std::uint64_t i = 0; i < size; ++i) {
          keys.push_back(random() % (is_big ? 1 + random() % 30'000 : 50) - 1);
        }
        offsets.push_back(static_cast<std::int32_t>(keys.size()));
      }
    }
  }
};

TEST(Planner, NothingDependsOnTheNumberOfThreads) {
  for (const auto& [has_single_keys, last_dim] :
       {std::pair{true, 16U}, {true, 5U}, {false, 16U}, {false, 5U}}) {
    const BigBatch input(last_dim, has_single_keys, last_dim);
    const Plan alone = Planner(input.config).plan(input.keys, input.offsets, input.batch);
    std::mt19937_64 random(1);
    std::vector<float> values(alone.total_floats());
    std::vector<float> grads(input.config.width * static_cast<std::size_t>(input.batch));
    for (float& value : values) value = static_cast<float>(random() % 1000) / 7.0F;
    for (float& grad : grads) grad = static_cast<float>(random() % 1000) / 7.0F - 70.0F;
    std::vector<float> matrix(grads.size(), -1.0F);
    std::vector<float> sums(values.size(), -1.0F);
    alone.gather(values.data(), matrix.data());
    alone.scatter(grads.data(), sums.data());
    for (const std::int64_t threads : {2, 3, 8}) {
      const Planner planner(input.config, threads);
      const Plan plan = planner.plan(input.keys, input.offsets, input.batch);
      EXPECT_EQ(listed(plan.unique()), listed(alone.unique())) << threads;
      EXPECT_EQ(listed(plan.inverse()), listed(alone.inverse())) << threads;
      EXPECT_EQ(plan.counts(), alone.counts()) << threads;
      EXPECT_EQ(plan.value_floats(), alone.value_floats()) << threads;
      std::vector<float> other_matrix(grads.size(), -1.0F);
      std::vector<float> other_sums(values.size(), -2.0F);
      plan.gather(values.data(), other_matrix.data());
      plan.scatter(grads.data(), other_sums.data());
      EXPECT_EQ(other_matrix, matrix) << threads;
      EXPECT_EQ(other_sums, sums) << threads;
    }
  }
}

// Widths that have code of their own, and others. Sums are to the bit those of a plain loop over
// the keys.
TEST(Planner, GathersAndSumsRowsOfAnyWidth) {
  for (const std::uint32_t dim : {1U, 3U, 4U, 8U, 12U, 16U, 17U, 32U, 64U}) {
    for (const std::int64_t threads : {1, 2}) {
      const std::size_t batch = threads == 1 ? 301 : 10'001;
      const Planner planner({.feature_tables = {0},
                             .dims = {dim},
                             .columns = {1},
                             .combiners = {Combiner::kSum},
                             .owners = {1, 0, 1, 1},
                             .shards = 2,
                             .width = dim + 2},
                            threads);
      std::mt19937_64 random(dim);
      std::vector<std::uint64_t> keys(batch);
      for (auto& key : keys) key = random() % batch;
      std::vector<std::int32_t> offsets(batch + 1);
      std::iota(offsets.begin(), offsets.end(), 0);
      const Plan plan = planner.plan(keys, offsets, static_cast<std::int64_t>(batch));
      std::vector<float> values(plan.total_floats());
      std::iota(values.begin(), values.end(), 1.0F);
      std::vector<float> matrix(batch * (dim + 2), -1.0F);
      plan.gather(values.data(), matrix.data());
      std::vector<float> sums(values.size(), -1.0F);
      plan.scatter(matrix.data(), sums.data());
      std::vector<float> expected(values.size(), 0.0F);
      for (std::size_t b = 0; b < batch; ++b) {
        const auto position = static_cast<std::size_t>(plan.inverse()[b]);
        const float* const row = matrix.data() + b * (dim + 2);
        ASSERT_EQ(row[0], -1.0F);
        ASSERT_EQ(row[dim + 1], -1.0F);
        for (std::size_t i = 0; i < dim; ++i) {
          ASSERT_EQ(row[1 + i], values[position * dim + i]) << dim << " " << b;
          expected[position * dim + i] += row[1 + i];
        }
      }
      ASSERT_EQ(sums, expected) << dim << " " << threads;

      const std::size_t half = batch / 2 + 1;
      const std::array<const float*, 2> halves = {matrix.data(), &matrix[half * (dim + 2)]};
      std::ranges::fill(sums, -1.0F);
      plan.scatter({halves, half}, sums.data());
      ASSERT_EQ(sums, expected) << dim << " " << threads << " in two blocks";
    }
  }
}

TEST(Planner, ATeamThatIsBusyIsNotWaitedFor) {
  const BigBatch input(3, true, 16);
  const Planner planner(input.config, 2);
  const auto work = [&] {
    for (int round = 0; round < 20; ++round) {
      const Plan plan = planner.plan(input.keys, input.offsets, input.batch);
      for (std::size_t i = 0; i < input.keys.size(); ++i) {
        ASSERT_EQ(plan.unique()[static_cast<std::size_t>(plan.inverse()[i])], input.keys[i]);
      }
    }
  };
  std::thread other(work);
  work();
  other.join();
}

TEST(Planner, APlanOutlivesItsPlanner) {
  const BigBatch input(4, true, 16);
  const auto plan_once = [&] {
    return Planner(input.config, 2).plan(input.keys, input.offsets, input.batch);
  };
  const Plan plan = plan_once();
  std::vector<float> sums(plan.total_floats());
  const std::vector<float> ones(input.config.width * static_cast<std::size_t>(input.batch), 1.0F);
  plan.scatter(ones.data(), sums.data());
  const double total = std::accumulate(sums.begin(), sums.end(), 0.0);
  EXPECT_EQ(total, 16.0 * static_cast<double>(input.keys.size()));
}

TEST(Planner, RefusesBadConfigurationsAndOffsets) {
  PlannerConfig overlapping = two_features();
  overlapping.columns = {0, 1};
  EXPECT_THROW(Planner{overlapping}, std::invalid_argument);
  EXPECT_THROW(Planner(two_features(), 0), std::invalid_argument);
  EXPECT_THROW(Planner(two_features(), Planner::kMaxThreads + 1), std::invalid_argument);
  const Planner planner(two_features());
  const std::vector<std::uint64_t> keys = {1};
  for (const std::vector<std::int32_t>& offsets :
       {std::vector<std::int32_t>{}, {0, 1}, {0, 2, 1}, {0, 1, 2}, {-1, 0, 1}, {0, -1, 1}}) {
    EXPECT_THROW(static_cast<void>(planner.plan(keys, offsets, 1)), std::invalid_argument);
  }
}

}  // namespace
}  // namespace embermesh

#include "planner.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <stdexcept>
#include <thread>

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

TEST(Planner, FeaturesThatShareATableShareItsUniqueKeys) {
  const Planner planner(two_features());
  const std::vector<std::uint64_t> keys = {7, 0, 0, ~0ULL, 7};
  const std::vector<std::int32_t> offsets = {0, 1, 2, 5, 5};  // bags {7} {0} {0, -1, 7} {}
  const Plan plan = planner.plan(keys, offsets, 2);
  EXPECT_EQ(plan.unique(), (std::vector<std::uint64_t>{7, 0, ~0ULL}));
  EXPECT_EQ(plan.inverse(), (std::vector<std::int32_t>{0, 1, 1, 2, 0}));
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

TEST(Planner, RefusesBadConfigurationsAndOffsets) {
  PlannerConfig overlapping = two_features();
  overlapping.columns = {0, 1};
  EXPECT_THROW(Planner{overlapping}, std::invalid_argument);
  const Planner planner(two_features());
  const std::vector<std::uint64_t> keys = {1};
  for (const std::vector<std::int32_t>& offsets :
       {std::vector<std::int32_t>{}, {0, 1}, {0, 2, 1}, {0, 1, 2}, {-1, 0, 1}, {0, -1, 1}}) {
    EXPECT_THROW(static_cast<void>(planner.plan(keys, offsets, 1)), std::invalid_argument);
  }
}

}  // namespace
}  // namespace embermesh

#include "recent_keys.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <stdexcept>
#include <utility>

namespace embermesh {
namespace {

PlannerConfig two_tables() {
  PlannerConfig config{.feature_tables = {0, 1},
                       .dims = {2, 3},
                       .columns = {0, 2},
                       .combiners = {Combiner::kSum, Combiner::kSum},
                       .owners = std::vector<std::uint16_t>(16, 0),
                       .shards = 3,
                       .width = 5};
  for (std::size_t p = 0; p < config.owners.size(); ++p) {
    config.owners[p] = static_cast<std::uint16_t>(p % 3);
  }
  return config;
}

// Keys of a distribution that moves with the step, so that old ones go out of use.
Plan random_plan(const Planner& planner, std::uint64_t step, std::mt19937_64& random) {
  const std::size_t batch = random() % 60;
  std::vector<std::uint64_t> keys(2 * batch);
  for (auto& key : keys) key = step * 5 + random() % 60;
  std::vector<std::int32_t> offsets(2 * batch + 1);
  for (std::size_t i = 0; i < offsets.size(); ++i) offsets[i] = static_cast<std::int32_t>(i);
  return planner.plan(keys, offsets, static_cast<std::int64_t>(batch));
}

TEST(RecentKeys, GroupsAreThoseOfAMap) {
  const Planner planner(two_tables());
  RecentKeys recent;
  std::mt19937_64 random(1);
  std::map<std::pair<std::size_t, std::uint64_t>, std::uint64_t> last_of;
  std::uint64_t step = 0;
  std::uint64_t oldest = 1;
  for (int round = 0; round < 300; ++round) {
    step += 1 + random() % 3;
    oldest = std::max(oldest, step - std::min<std::uint64_t>(step - 1, random() % 6));
    const Plan plan = random_plan(planner, step, random);
    std::map<std::uint64_t, KeyGroup> want;
    want[0].counts.assign(6, 0);
    std::size_t at = 0;
    for (std::size_t segment = 0; segment < 6; ++segment) {
      for (const std::size_t end = at + plan.counts()[segment]; at < end; ++at) {
        auto& last = last_of[{segment % 2, plan.unique()[at]}];
        KeyGroup& group = want[last >= oldest ? last : 0];
        group.counts.resize(6);
        group.positions.push_back(static_cast<std::int32_t>(at));
        group.keys.push_back(plan.unique()[at]);
        ++group.counts[segment];
        last = step;
      }
    }
    const auto groups = recent.split(plan, step, oldest);
    ASSERT_EQ(groups.size(), want.size());
    auto expected = want.begin();
    for (const KeyGroup& group : groups) {
      EXPECT_EQ(group.step, expected->first);
      EXPECT_EQ(group.positions, expected->second.positions);
      EXPECT_EQ(group.keys, expected->second.keys);
      EXPECT_EQ(group.counts, expected->second.counts);
      ++expected;
    }
    EXPECT_LE(recent.cells(), 2 * 8 * 5 * 60 + 4);
  }
}

TEST(RecentKeys, StepsOutOfOrderAndOtherPlannersAreRefused) {
  const Planner planner(two_tables());
  const Planner other(two_tables());
  std::mt19937_64 random(2);
  const Plan plan = random_plan(planner, 1, random);
  RecentKeys recent;
  EXPECT_THROW(recent.split(plan, 0, 0), std::invalid_argument);
  EXPECT_THROW(recent.split(plan, RecentKeys::kMaxSteps + 2, 1), std::invalid_argument);
  recent.split(plan, 3, 3);
  EXPECT_THROW(recent.split(plan, 4, 2), std::invalid_argument);
  EXPECT_THROW(recent.split(plan, 3, 3), std::invalid_argument);
  EXPECT_THROW(recent.split(plan, 4, 5), std::invalid_argument);
  EXPECT_THROW(recent.split(random_plan(other, 1, random), 4, 4), std::invalid_argument);
  EXPECT_EQ(recent.split(plan, 4, 3).size(), plan.unique().empty() ? 1U : 2U);
}

}  // namespace
}  // namespace embermesh

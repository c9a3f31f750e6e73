#include "recent_keys.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <stdexcept>
#include <utility>

#include "two_tables.h"

namespace embermesh {
namespace {

// Keys of a distribution that moves with the step, so that old ones go out of use.
Plan plan_of_step(const Planner& planner, std::uint64_t step, std::mt19937_64& random,
                  std::size_t range = 60) {
  return random_plan(planner, range, step * range / 12, random, range);
}

void expect_groups_of_a_map(std::size_t range, int rounds) {
  const Planner planner(two_tables());
  RecentKeys recent;
  std::mt19937_64 random(1);
  std::map<std::pair<std::size_t, std::uint64_t>, std::uint64_t> last_of;
  std::uint64_t step = 0;
  std::uint64_t oldest = 1;
  for (int round = 0; round < rounds; ++round) {
    step += 1 + random() % 3;
    oldest = std::max(oldest, step - std::min<std::uint64_t>(step - 1, random() % 6));
    const Plan plan = plan_of_step(planner, step, random, range);
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
    EXPECT_LE(recent.cells(), 2 * 8 * 5 * range + 4);
  }
}

TEST(RecentKeys, GroupsAreThoseOfAMap) { expect_groups_of_a_map(60, 300); }

// Many blocks of keys to a table and shard, and cells on huge pages.
TEST(RecentKeys, GroupsOfLargePlansAreThoseOfAMap) { expect_groups_of_a_map(20'000, 12); }

TEST(RecentKeys, StepsOutOfOrderAndOtherPlannersAreRefused) {
  const Planner planner(two_tables());
  const Planner other(two_tables());
  std::mt19937_64 random(2);
  const Plan plan = plan_of_step(planner, 1, random);
  RecentKeys recent;
  EXPECT_THROW(recent.split(plan, 0, 0), std::invalid_argument);
  EXPECT_THROW(recent.split(plan, RecentKeys::kMaxSteps + 2, 1), std::invalid_argument);
  recent.split(plan, 3, 3);
  EXPECT_THROW(recent.split(plan, 4, 2), std::invalid_argument);
  EXPECT_THROW(recent.split(plan, 3, 3), std::invalid_argument);
  EXPECT_THROW(recent.split(plan, 4, 5), std::invalid_argument);
  EXPECT_THROW(recent.split(plan_of_step(other, 1, random), 4, 4), std::invalid_argument);
  EXPECT_EQ(recent.split(plan, 4, 3).size(), plan.unique().empty() ? 1U : 2U);
}

}  // namespace
}  // namespace embermesh

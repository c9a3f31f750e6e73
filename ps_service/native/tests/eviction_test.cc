#include "eviction.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace embermesh {
namespace {

constexpr std::uint32_t kNow = 1'800'000'000;

std::optional<Reason> verdict(const EvictionPolicy& policy, RowMeta meta, std::uint32_t now,
                              float weight = 1.0F) {
  const float weights[2] = {weight, 0.0F};
  return policy.verdict(meta, now, weights, 2);
}

TEST(Eviction, WithoutRulesEveryRowStays) {
  const EvictionPolicy policy;
  EXPECT_TRUE(policy.is_off());
  EXPECT_EQ(verdict(policy, 0, kNow, 0.0F), std::nullopt);
  EXPECT_EQ(policy.most_rows(4), ~std::uint64_t{0});
}

TEST(Eviction, TtlCountsFromTheLastTrainingPull) {
  const EvictionPolicy policy({{"ttl", {{"seconds", 100.0}}}});
  const RowMeta meta = policy.on_pull(policy.on_pull(0, kNow, 1), kNow + 50, 1);
  EXPECT_EQ(verdict(policy, meta, kNow + 150), std::nullopt);
  EXPECT_EQ(verdict(policy, meta, kNow + 151), Reason::kTtl);
  EXPECT_EQ(verdict(policy, 0, kNow), std::nullopt);  // not seen yet: age unknown
}

TEST(Eviction, SmallRowsGoOnceTheyAreIdle) {
  const EvictionPolicy policy({{"norm", {{"below", 0.5}, {"idle", 60.0}}}});
  const RowMeta meta = policy.on_pull(0, kNow, 1);
  EXPECT_EQ(verdict(policy, meta, kNow + 59, 0.1F), std::nullopt);
  EXPECT_EQ(verdict(policy, meta, kNow + 60, 0.1F), Reason::kNorm);
  EXPECT_EQ(verdict(policy, meta, kNow + 60, -0.6F), std::nullopt);
}

TEST(Eviction, ScoreWeighsShowsAndClicksAndDecays) {
  const EvictionPolicy policy(
      {{"score",
        {{"below", 1.0}, {"show", 0.1}, {"click", 2.0}, {"half_life", 6400.0}, {"idle", 0.0}}}});
  const RowMeta shown = policy.on_push(0, kNow, 10.0, 0.0, 1);  // 1.0
  EXPECT_EQ(verdict(policy, shown, kNow), std::nullopt);
  EXPECT_EQ(verdict(policy, shown, kNow + 640), Reason::kScore);
  const RowMeta clicked = policy.on_push(0, kNow, 11.0, 10.0, 1);  // 20.1: four half-lives and more
  EXPECT_EQ(verdict(policy, clicked, kNow + 4 * 6400), std::nullopt);
  EXPECT_EQ(verdict(policy, clicked, kNow + 5 * 6400), Reason::kScore);
  EXPECT_EQ(policy.on_pull(shown, kNow, 1), shown);  // reading is no show
}

TEST(Eviction, LruRanksByTimeAndLfuByUsageThenTime) {
  const EvictionPolicy lru({{"lru", {{"rows", 100.0}}}});
  EXPECT_LT(lru.rank(lru.on_pull(0, kNow, 1), kNow + 9),
            lru.rank(lru.on_pull(0, kNow + 1, 1), kNow + 9));
  const EvictionPolicy lfu({{"lfu", {{"rows", 100.0}, {"half_life", 640.0}}}});
  const RowMeta once = lfu.on_pull(0, kNow, 1);
  const RowMeta twice = lfu.on_pull(once, kNow, 1);
  const RowMeta once_later = lfu.on_pull(0, kNow + 10, 1);
  EXPECT_LT(lfu.rank(once, kNow + 10), lfu.rank(once_later, kNow + 10));
  EXPECT_LT(lfu.rank(once_later, kNow + 10), lfu.rank(twice, kNow + 10));
  EXPECT_LT(lfu.rank(twice, kNow + 1000), lfu.rank(lfu.on_pull(0, kNow + 1000, 1), kNow + 1000));
  EXPECT_EQ(lru.most_rows(8), 13U);
  EXPECT_EQ(lru.over_limit(), Reason::kLru);
  EXPECT_EQ(lfu.over_limit(), Reason::kLfu);
}

TEST(Eviction, RulesAreCheckedByName) {
  EXPECT_THROW(EvictionPolicy(RuleMap{{"never", {}}}), std::invalid_argument);
  EXPECT_THROW(EvictionPolicy(RuleMap{{"ttl", {{"seconds", 0.0}}}}), std::invalid_argument);
  EXPECT_THROW(EvictionPolicy(RuleMap{{"ttl", {{"minutes", 1.0}}}}), std::invalid_argument);
  EXPECT_THROW(EvictionPolicy(RuleMap{{"lru", {}}, {"lfu", {}}}), std::invalid_argument);
  EXPECT_THROW(EvictionPolicy(RuleMap{{"lfu", {}}, {"score", {}}}), std::invalid_argument);
  const EvictionPolicy policy({{"ttl", {}}, {"floor", {{"rows", 10.0}}}});
  EXPECT_EQ(policy.rules().at("ttl").at("seconds"), 30.0 * 86400);
  EXPECT_EQ(policy.fewest_rows(4), 3U);
}

}  // namespace
}  // namespace embermesh

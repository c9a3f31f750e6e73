#include "hot_keys.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace embermesh {
namespace {

TEST(SpaceSaving, FindsEveryKeyAboveItsShareAndBoundsItsCount) {
  SpaceSaving sketch;
  std::map<std::uint64_t, std::uint64_t> truth;
  std::mt19937_64 random(1);
  constexpr std::uint64_t kTotal = 100000;
  for (std::uint64_t i = 0; i < kTotal; ++i) {
    const std::uint64_t key = i % 3 == 0 ? random() % 5 : random();
    sketch.add(key, 1);
    ++truth[key];
  }
  std::map<std::uint64_t, HotKey> found;
  for (const HotKey& hot : sketch.top(SpaceSaving::kCounters)) found.emplace(hot.key, hot);
  for (const auto& [key, count] : truth) {
    if (count <= kTotal / SpaceSaving::kCounters) continue;
    ASSERT_TRUE(found.contains(key));
    EXPECT_GE(found.at(key).count, count);
    EXPECT_LE(found.at(key).count - found.at(key).error, count);
  }
  const auto top = sketch.top(5);
  ASSERT_EQ(top.size(), 5U);
  for (const HotKey& hot : top) EXPECT_LT(hot.key, 5U);
}

TEST(SpaceSaving, OldKeysFade) {
  SpaceSaving sketch;
  sketch.add(1, SpaceSaving::kMemory / 4);
  for (int i = 0; i < 16; ++i) sketch.add(2, SpaceSaving::kMemory / 4);
  EXPECT_EQ(sketch.top(1)[0].key, 2U);
  EXPECT_LT(sketch.top(2)[1].count, SpaceSaving::kMemory / 32);
}

TEST(SpaceSaving, AnEmptySketchHasNoKeys) { EXPECT_TRUE(SpaceSaving().top(10).empty()); }

TEST(HotKeySampler, EstimatesWhatRequestsHoldTableByTable) {
  HotKeySampler sampler(2);
  const std::vector<std::uint32_t> counts = {1000, 500, 500, 0};  // two groups of two tables
  std::vector<std::uint64_t> keys(2000);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    keys[i] = i >= 1000 && i < 1500 ? 7 : 100 + i % 20;
  }
  constexpr int kRequests = 200;
  for (int i = 0; i < kRequests; ++i) sampler.sample(counts, keys);
  const auto second = sampler.top(1, 10);
  ASSERT_EQ(second.size(), 1U);
  EXPECT_EQ(second[0].key, 7U);
  EXPECT_NEAR(static_cast<double>(second[0].count), 500.0 * kRequests, 5000.0);
  EXPECT_EQ(sampler.top(0, 100).size(), 20U);
  EXPECT_NEAR(static_cast<double>(sampler.top(0, 1)[0].count), 75.0 * kRequests, 5000.0);
  sampler.clear();
  EXPECT_TRUE(sampler.top(0, 10).empty());
}

TEST(HotKeySampler, SmallAndEmptyRequestsAreSampledToo) {
  HotKeySampler sampler(1);
  const std::vector<std::uint64_t> one = {42};
  for (int i = 0; i < 1000; ++i) sampler.sample(std::vector<std::uint32_t>{1}, one);
  sampler.sample(std::vector<std::uint32_t>{0}, {});
  ASSERT_EQ(sampler.top(0, 3).size(), 1U);
  EXPECT_NEAR(static_cast<double>(sampler.top(0, 1)[0].count), 1000.0, 700.0);
}

}  // namespace
}  // namespace embermesh

// Pull, push, evict, erase, dump and stats at once, against an oracle; run it under ThreadSanitizer
// and AddressSanitizer.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <random>
#include <thread>

#include "shard_fixture.h"

namespace embermesh {
namespace {

constexpr std::uint32_t kPartitions = 4;
constexpr std::size_t kDim = 12;
constexpr int kRounds = 150;
constexpr std::uint32_t kStart = 1'800'000'000;
constexpr std::uint64_t kLimit = 600;
const std::vector<std::uint32_t> kCounts = {100};

// Every column of a row starts at zero and gets equal gradients, so two different columns are half
// a write. Each writer has its own keys, so it knows what a row must hold: the sum of its pushes
// since the row was last seen at zero, or zero again if the row was evicted meanwhile.
class EvictionStress : public testing::Test {
 protected:
  static TableConfig table() {
    TableConfig table("t", kDim, "sgd", {{"lr", 1.0}}, "zeros", {});
    table.rows = {"count",
                  {{"n", 2.0}, {"keys", 1e5}},
                  {{"ttl", {{"seconds", 40.0}}}, {"lru", {{"rows", double{kLimit}}}}}};
    return table;
  }

  void train(std::uint64_t writer) {
    std::mt19937_64 random(writer);
    std::map<std::uint64_t, float> expected;
    std::vector<float> values(100 * kDim);
    for (int round = 0; round < kRounds; ++round) {
      const auto seconds = static_cast<std::uint32_t>(kStart + round);
      std::vector<std::uint64_t> keys;
      for (int i = 0; i < 100; ++i) keys.push_back(writer << 32 | random() % 500);
      shard_.pull(kCounts, keys, true, values.data(), {static_cast<std::uint64_t>(round), seconds});
      for (std::size_t i = 0; i < keys.size(); ++i) {
        const float value = values[i * kDim];
        torn_ += std::all_of(&values[i * kDim], &values[(i + 1) * kDim],
                             [&](float v) { return v == value; })
                     ? 0
                     : 1;
        float& known = expected[keys[i]];
        if (value == 0.0F) known = 0.0F;  // not admitted, or evicted and new
        wrong_ += value == known ? 0 : 1;
      }
      std::sort(keys.begin(), keys.end());
      keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
      const std::vector<float> grads(keys.size() * kDim, -1.0F);
      const std::vector<std::uint32_t> counts = {static_cast<std::uint32_t>(keys.size())};
      shard_.push(counts, keys, grads, {static_cast<std::uint64_t>(round), seconds});
      settle(keys, expected);
      clock_.store(seconds);
    }
  }

  // Which pushes found their row only the row can tell.
  void settle(const std::vector<std::uint64_t>& keys, std::map<std::uint64_t, float>& expected) {
    const std::vector<float> values =
        pull(shard_, {static_cast<std::uint32_t>(keys.size())}, keys, false);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const float value = values[i * kDim];
      float& known = expected[keys[i]];
      wrong_ += value == 0.0F || value == known || value == known + 1.0F ? 0 : 1;
      known = value;
    }
  }

  void evict() {
    for (std::uint32_t p = 0; !done_; p = (p + 1) % kPartitions) {
      evicted_ += shard_.evict(p, clock_);
      const RemovedKeys removed = shard_.removed();
      listed_ += removed.keys.size();
      lost_ += removed.is_complete ? 0 : 1;
    }
  }

  void look() {
    for (std::uint32_t p = 0; !done_; p = (p + 1) % kPartitions) {
      const std::string block = shard_.dump_partition(p);
      SparseShard other({table()}, kPartitions, 1);
      other.load_partition(std::as_bytes(std::span(block.data(), block.size())));
      const TableRows rows = other.export_rows(0);
      for (std::size_t i = 0; i < rows.values.size(); ++i) {
        torn_ += rows.values[i] == rows.values[i - i % kDim] ? 0 : 1;
      }
      static_cast<void>(shard_.stats());
      static_cast<void>(shard_.index_stats());
      static_cast<void>(shard_.hot_keys(0, 5));
      static_cast<void>(shard_.bytes());
    }
  }

  SparseShard shard_{{table()}, kPartitions, 1};
  std::atomic<std::uint32_t> clock_{kStart};
  std::atomic<bool> done_{false};
  std::atomic<int> torn_{0};
  std::atomic<int> wrong_{0};
  std::uint64_t evicted_ = 0;
  std::uint64_t listed_ = 0;
  int lost_ = 0;
};

TEST_F(EvictionStress, NoUpdateIsLostOrTornAndEveryRemovalIsListed) {
  static_cast<void>(shard_.removed());
  std::vector<std::thread> background;
  background.emplace_back([this] { evict(); });
  background.emplace_back([this] { look(); });
  std::vector<std::thread> writers;
  for (std::uint64_t writer = 1; writer <= 3; ++writer) {
    writers.emplace_back([this, writer] { train(writer); });
  }
  for (std::thread& thread : writers) thread.join();
  done_ = true;
  for (std::thread& thread : background) thread.join();
  for (std::uint32_t p = 0; p < kPartitions; ++p) evicted_ += shard_.evict(p, clock_);
  listed_ += shard_.removed().keys.size();
  EXPECT_EQ(torn_, 0);
  EXPECT_EQ(wrong_, 0);
  EXPECT_EQ(lost_, 0);
  EXPECT_EQ(listed_, evicted_);
  EXPECT_LE(shard_.rows()[0], kLimit);
  const TableStats stats = shard_.stats()[0];
  std::uint64_t counted = 0;
  for (const std::uint64_t rows : stats.tally.evicted) counted += rows;
  EXPECT_EQ(counted, evicted_);
  EXPECT_EQ(stats.tally.admitted - counted, stats.rows);
  EXPECT_GT(counted, 0U);
  EXPECT_EQ(stats.pulled, 3U * kRounds * 100);
}

}  // namespace
}  // namespace embermesh

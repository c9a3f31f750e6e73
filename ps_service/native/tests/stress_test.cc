// All verbs at once from many threads; run it under ThreadSanitizer and AddressSanitizer.
#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <random>
#include <stdexcept>
#include <thread>

#include "shard_fixture.h"

namespace embermesh {
namespace {

constexpr std::uint32_t kPartitions = 8;
constexpr std::size_t kDim = 24;
constexpr std::uint64_t kKeys = 3000;
constexpr int kRounds = 60;

// Every column of a row starts equal and gets equal gradients, so a reader that sees two different
// columns has seen half a write.
class Stress : public testing::Test {
 protected:
  SparseShard shard_{
      {TableConfig("t", kDim, "sgd", {{"lr", 1.0}}, "zeros", {})}, kPartitions, 1, 2};
  std::atomic<std::int64_t> applied_{0};
  std::atomic<int> torn_{0};

  void write(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    for (int round = 0; round < kRounds; ++round) {
      std::vector<std::uint64_t> keys(200);
      for (auto& key : keys) key = random() % kKeys;
      const std::vector<std::uint32_t> counts = {200};
      if (round % 2 == 0) pull(shard_, counts, keys, true);
      const PushResult result =
          shard_.push(counts, keys, std::vector<float>(keys.size() * kDim, -1.0F));
      applied_ += static_cast<std::int64_t>(result.applied);
      EXPECT_EQ(result.applied + result.missing, keys.size());
    }
  }

  void check_rows(const std::vector<float>& values) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (values[i] != values[i - i % kDim]) ++torn_;
    }
  }

  void read(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    for (int round = 0; round < kRounds; ++round) {
      std::vector<std::uint64_t> keys(100);
      for (auto& key : keys) key = random() % kKeys;
      check_rows(pull(shard_, {100}, keys, round % 3 == 0));
      static_cast<void>(shard_.rows());
      static_cast<void>(shard_.bytes());
    }
  }

  // Removes keys that no writer uses, and packs the partitions that others work on.
  void evict() {
    for (int round = 0; round < kRounds; ++round) {
      std::vector<std::uint64_t> keys(400);
      for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = kKeys + i;
      const std::vector<std::uint32_t> counts = {400};
      pull(shard_, counts, keys, true);
      EXPECT_EQ(shard_.erase(counts, keys), keys.size());
      if (round % 4 == 0) shard_.compact();
    }
  }

  void dump() {
    for (int round = 0; round < kRounds; ++round) {
      const std::string block = shard_.dump_partition(round % kPartitions);
      SparseShard other({TableConfig("t", kDim, "sgd", {}, "zeros", {})}, kPartitions, 1);
      other.load_partition(std::as_bytes(std::span(block.data(), block.size())));
      check_rows(other.export_rows(0).values);
      if (round % 10 == 0) check_rows(shard_.export_rows(0).values);
    }
  }
};

TEST_F(Stress, ConcurrentPullPushAndDumpLoseNothingAndTearNothing) {
  std::vector<std::thread> threads;
  threads.emplace_back([this] { write(1); });
  threads.emplace_back([this] { write(2); });
  threads.emplace_back([this] { read(3); });
  threads.emplace_back([this] { dump(); });
  threads.emplace_back([this] { evict(); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(torn_, 0);
  double total = 0.0;
  for (const float value : shard_.export_rows(0).values) total += value;
  EXPECT_EQ(total, static_cast<double>(applied_) * kDim);
}

TEST_F(Stress, TeamsAndLoneThreadsShareTheShard) {
  const auto work = [this](std::uint64_t first) {
    std::vector<std::uint64_t> keys(6000);  // enough for a team
    for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = first + i % kKeys;
    const std::vector<std::uint32_t> counts = {6000};
    for (int round = 0; round < 10; ++round) {
      check_rows(pull(shard_, counts, keys, true));
      shard_.push(counts, keys, std::vector<float>(keys.size() * kDim, -1.0F));
    }
  };
  std::thread other([&] { work(0); });
  work(1);
  other.join();
  EXPECT_EQ(torn_, 0);
  double total = 0.0;
  for (const float value : shard_.export_rows(0).values) total += value;
  EXPECT_EQ(total, 2.0 * 10 * 6000 * kDim);
}

TEST_F(Stress, SnapshotsUnderTrafficHoldWholeRowsAndOnlyGrow) {
  std::thread first([this] { write(1); });
  std::thread second([this] { write(2); });
  std::atomic<bool> stop = false;
  std::thread comings_and_goings([&] {  // of keys that nobody writes
    std::vector<std::uint64_t> keys(300);
    for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = ~std::uint64_t{i};
    while (!stop) {
      pull(shard_, {300}, keys, true);
      shard_.erase(std::vector<std::uint32_t>{300}, keys);
    }
  });
  SparseShard copy({TableConfig("t", kDim, "sgd", {}, "zeros", {})}, kPartitions, 1);
  std::optional<std::uint64_t> since;
  double before = 0.0;
  for (std::uint64_t id = 1; id <= 20; ++id) {
    const auto snapshot = shard_.begin_snapshot(id, since);
    for (std::uint32_t p = 0; p < kPartitions; ++p) {
      const auto block = snapshot->dump(p);
      if (block) copy.load_partition(std::as_bytes(std::span(block->data(), block->size())));
    }
    snapshot->commit();
    since = id;
    const std::vector<float> values = copy.export_rows(0).values;
    check_rows(values);
    double total = 0.0;
    for (const float value : values) total += value;
    EXPECT_GE(total, before);
    before = total;
  }
  first.join();
  second.join();
  EXPECT_LE(before, static_cast<double>(applied_) * kDim);
  stop = true;
  comings_and_goings.join();
  EXPECT_EQ(torn_, 0);
}

TEST_F(Stress, ReplacingPartitionsUnderTrafficIsSafe) {
  pull(shard_, {3}, {1, 2, 3}, true);
  std::vector<std::string> blocks;
  for (std::uint32_t p = 0; p < kPartitions; ++p) blocks.push_back(shard_.dump_partition(p));
  std::thread writer([this] { write(1); });
  std::thread reader([this] { read(2); });
  for (int round = 0; round < kRounds; ++round) {
    const std::string& block = blocks[round % kPartitions];
    shard_.load_partition(std::as_bytes(std::span(block.data(), block.size())));
    if (round % 20 == 0) shard_.clear();
  }
  writer.join();
  reader.join();
  EXPECT_EQ(torn_, 0);
}

}  // namespace
}  // namespace embermesh

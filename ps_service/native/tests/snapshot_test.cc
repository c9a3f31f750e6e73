#include "snapshot.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <random>
#include <stdexcept>
#include <thread>

#include "shard_fixture.h"

namespace embermesh {
namespace {

using Keys = std::vector<std::uint64_t>;
using Blocks = std::map<std::uint32_t, std::string>;

constexpr std::uint32_t kPartitions = 8;

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// Every partition's block, empty partitions too.
Blocks content(const SparseShard& shard) {
  Blocks blocks;
  for (std::uint32_t p = 0; p < kPartitions; ++p) blocks[p] = shard.dump_partition(p);
  return blocks;
}

void restore(SparseShard& shard, const Blocks& blocks) {
  for (const auto& [p, block] : blocks) shard.load_partition(bytes_of(block));
}

// A shard under random traffic.
class Traffic {
 public:
  explicit Traffic(std::uint64_t seed) : random_(seed) {}

  void step(SparseShard& shard) {
    const std::uint64_t what = random_() % 40;
    if (what == 0) {
      shard.load_partition(bytes_of(shard.dump_partition(random_() % kPartitions)));
    } else if (what == 1 && random_() % 4 == 0) {
      shard.clear();
    } else if (what == 2 && random_() % 4 == 0) {
      shard.compact();
    } else if (what < 8) {
      shard.erase(std::vector<std::uint32_t>{20, 20}, some_keys());
    } else {
      const Keys keys = some_keys();
      pull(shard, {20, 20}, keys, what % 2 == 0);
      const std::vector<float> grads(20 * 3 + 20 * 5, 0.25F);
      shard.push(std::vector<std::uint32_t>{20, 20}, keys, grads);
    }
  }

  void steps(SparseShard& shard, int count) {
    for (int i = 0; i < count; ++i) step(shard);
  }

 private:
  Keys some_keys() {
    Keys keys(40);
    for (auto& key : keys) key = random_() % 3 == 0 ? ~(random_() % 50) : random_() % 2000;
    return keys;
  }

  std::mt19937_64 random_;
};

Blocks dump_all(Snapshot& snapshot) {
  Blocks blocks;
  for (std::uint32_t p = 0; p < kPartitions; ++p) {
    if (auto block = snapshot.dump(p)) blocks[p] = std::move(*block);
  }
  return blocks;
}

TEST(Snapshot, HoldsTheInstantOfItsBeginningWhateverHappensMeanwhile) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    SparseShard shard(two_tables(), kPartitions, 1);
    Traffic traffic(seed);
    traffic.steps(shard, static_cast<int>(seed) * 3);
    const Blocks expected = content(shard);
    const Keys rows = shard.rows();
    const auto snapshot = shard.begin_snapshot(1, std::nullopt);
    Blocks seen;
    for (std::uint32_t i = 0; i < kPartitions; ++i) {
      traffic.steps(shard, 4);
      const std::uint32_t p = (i * 3 + 5) % kPartitions;
      if (auto block = snapshot->dump(p)) seen[p] = std::move(*block);
      traffic.steps(shard, 2);
    }
    EXPECT_EQ(snapshot->rows(), rows);
    for (const auto& [p, block] : seen) ASSERT_EQ(block, expected.at(p)) << "seed " << seed;
    SparseShard restored(two_tables(), kPartitions, 1);
    restore(restored, seen);
    EXPECT_EQ(content(restored), expected);
  }
}

TEST(Snapshot, DeltasOnTopOfTheirBaseAreTheWholeContent) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SparseShard shard(two_tables(), kPartitions, 1);
    SparseShard restored(two_tables(), kPartitions, 1);
    Traffic traffic(seed);
    std::optional<std::uint64_t> since;
    for (std::uint64_t id = 1; id <= 6; ++id) {
      traffic.steps(shard, 30);
      if (id % 3 == 0) {  // one that comes to nothing
        const auto lost = shard.begin_snapshot(100 + id, since);
        traffic.steps(shard, 10);
        static_cast<void>(lost->dump(3));
      }
      const Blocks expected = content(shard);
      const auto snapshot = shard.begin_snapshot(id, since);
      traffic.steps(shard, 10);
      const Blocks blocks = dump_all(*snapshot);
      snapshot->commit();
      since = id;
      restore(restored, blocks);
      ASSERT_EQ(content(restored), expected) << "seed " << seed << ", snapshot " << id;
    }
  }
}

TEST(Snapshot, ADeltaHoldsChangedRowsOnly) {
  SparseShard shard(two_tables(), kPartitions, 1);
  Keys keys(1000);
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = i;
  pull(shard, {500, 500}, keys, true);
  const auto base = shard.begin_snapshot(1, std::nullopt);
  dump_all(*base);
  base->commit();
  const auto nothing = shard.begin_snapshot(2, 1);
  EXPECT_TRUE(dump_all(*nothing).empty());
  nothing->commit();
  shard.push(std::vector<std::uint32_t>{1, 0}, Keys{7}, std::vector<float>(3, 1.0F));
  pull(shard, {0, 1}, {~0ULL}, true);
  pull(shard, {500, 500}, keys, true);  // rows that are there are not changed by reading
  const auto delta = shard.begin_snapshot(3, 2);
  std::size_t rows = 0;
  for (const auto& [p, text] : dump_all(*delta)) {
    const PartitionBlock block(bytes_of(text), shard.schema(), kPartitions);
    EXPECT_EQ(block.kind(), BlockKind::kDelta);
    rows += block.rows(0) + block.rows(1);
  }
  EXPECT_EQ(rows, 2U);
}

TEST(Snapshot, ADeltaNamesRemovedKeysUnlessTheyCameBack) {
  SparseShard shard(two_tables(), 1, 1);
  pull(shard, {3, 1}, {1, 2, 3, 1}, true);
  shard.begin_snapshot(1, std::nullopt)->commit();
  const std::vector<std::uint32_t> counts = {2, 0};
  shard.erase(counts, Keys{1, 2});
  pull(shard, {1, 0}, {2}, true);
  const auto delta = shard.begin_snapshot(2, 1);
  const auto text = delta->dump(0);
  ASSERT_TRUE(text.has_value());
  const PartitionBlock block(bytes_of(*text), shard.schema(), 1);
  ASSERT_EQ(block.removed(0), 1U);
  EXPECT_EQ(block.removed_key(0, 0), 1U);
  ASSERT_EQ(block.rows(0), 1U);
  EXPECT_EQ(block.key(0, 0), 2U);
  EXPECT_EQ(block.rows(1) + block.removed(1), 0U);
}

TEST(Snapshot, APartitionThatLostMoreKeysThanItListsComesWhole) {
  SparseShard shard({make_table("a", 2)}, 1, 1);
  Keys keys(3000);
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = i;
  shard.begin_snapshot(1, std::nullopt)->commit();
  for (int round = 0; round < 2; ++round) {  // 6000 removals of a partition that had no rows
    pull(shard, {3000}, keys, true);
    shard.erase(std::vector<std::uint32_t>{3000}, keys);
  }
  const auto delta = shard.begin_snapshot(2, 1);
  const auto text = delta->dump(0);
  ASSERT_TRUE(text.has_value());
  const PartitionBlock block(bytes_of(*text), shard.schema(), 1);
  EXPECT_EQ(block.kind(), BlockKind::kWhole);
  EXPECT_EQ(block.rows(0), 0U);
}

TEST(Snapshot, CompactionLosesNeitherRowsNorChanges) {
  SparseShard shard({make_table("a", 16)}, 1, 1);
  SparseShard copy({make_table("a", 16)}, 1, 1);
  Keys keys(4000);
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = i;
  pull(shard, {4000}, keys, true);
  const auto erase = [&](std::uint32_t first, std::uint32_t count) {
    shard.erase(std::vector<std::uint32_t>{count}, std::span(keys).subspan(first, count));
  };
  erase(0, 1500);  // holes for rows to move into
  const auto base = shard.begin_snapshot(1, std::nullopt);
  copy.load_partition(bytes_of(*base->dump(0)));
  base->commit();

  shard.push(std::vector<std::uint32_t>{1}, Keys{3999}, std::vector<float>(16, 1.0F));
  shard.compact();
  const std::string expected = shard.dump_partition(0);
  const auto delta = shard.begin_snapshot(2, 1);
  erase(1500, 1200);
  shard.compact();
  pull(shard, {1}, {5}, true);
  const auto text = delta->dump(0);
  copy.load_partition(bytes_of(*text));
  EXPECT_EQ(copy.dump_partition(0), expected);
  EXPECT_EQ(PartitionBlock(bytes_of(*text), shard.schema(), 1).rows(0), 1U);
  delta->commit();

  const std::string later = shard.dump_partition(0);
  const auto whole = shard.begin_snapshot(3, std::nullopt);
  erase(2700, 1000);
  shard.compact();
  pull(shard, {500}, Keys(keys.begin(), keys.begin() + 500), true);
  EXPECT_EQ(*whole->dump(0), later);
}

TEST(Snapshot, OneAtATimeAndOnlySinceTheLatest) {
  SparseShard shard(two_tables(), kPartitions, 1);
  EXPECT_THROW(static_cast<void>(shard.begin_snapshot(1, 0)), std::invalid_argument);
  auto first = shard.begin_snapshot(1, std::nullopt);
  EXPECT_THROW(static_cast<void>(shard.begin_snapshot(2, std::nullopt)), std::invalid_argument);
  static_cast<void>(first->dump(0));
  EXPECT_THROW(static_cast<void>(first->dump(0)), std::invalid_argument);
  EXPECT_THROW(static_cast<void>(first->dump(kPartitions)), std::invalid_argument);
  EXPECT_THROW(static_cast<void>(first->dump(-1)), std::invalid_argument);
  first->commit();
  EXPECT_THROW(static_cast<void>(first->dump(1)), std::invalid_argument);
  EXPECT_THROW(static_cast<void>(shard.begin_snapshot(2, 0)), std::invalid_argument);
  auto second = shard.begin_snapshot(2, 1);
  second.reset();  // given up: the latest complete one is still the first
  EXPECT_THROW(static_cast<void>(shard.begin_snapshot(3, 2)), std::invalid_argument);
  EXPECT_NO_THROW(static_cast<void>(shard.begin_snapshot(3, 1)));
}

TEST(Snapshot, MemoryOfImagesIsGivenBack) {
  for (const bool is_dumped : {true, false}) {
    SparseShard shard({make_table("a", 16)}, kPartitions, 1);
    Keys keys(4000);
    for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = i;
    pull(shard, {4000}, keys, true);
    const std::size_t before = shard.bytes();
    auto snapshot = shard.begin_snapshot(1, std::nullopt);
    shard.push(std::vector<std::uint32_t>{4000}, keys, std::vector<float>(4000 * 16, 1.0F));
    EXPECT_GT(shard.bytes(), before + 4000 * 32 * sizeof(float));
    if (is_dumped) dump_all(*snapshot);
    snapshot.reset();
    EXPECT_LT(shard.bytes(), before + 8000);  // a bit or so per row remains
  }
}

// One thread adds 1 to key 0, then to key 1, ..., round after round: at every instant a prefix of
// the keys is one ahead of the others.
TEST(Snapshot, IsAConsistentCutThroughConcurrentPushes) {
  constexpr std::uint64_t kKeys = 400;
  SparseShard shard({TableConfig("a", 2, "sgd", {{"lr", 1.0}}, "zeros", {})}, kPartitions, 1);
  Keys keys(kKeys);
  for (std::size_t i = 0; i < kKeys; ++i) keys[i] = i;
  pull(shard, {kKeys}, keys, true);
  std::atomic<std::uint64_t> asked = 0;
  std::atomic<std::uint64_t> done = 0;
  std::atomic<bool> stop = false;
  std::thread pusher([&] {
    const std::vector<float> grad = {-1.0F, -1.0F};
    while (!stop) {
      const std::uint64_t key = asked++ % kKeys;
      shard.push(std::vector<std::uint32_t>{1}, std::span(&key, 1), grad);
      ++done;
    }
  });
  for (std::uint64_t id = 1; id <= 40; ++id) {
    const std::uint64_t at_least = done;
    const auto snapshot = shard.begin_snapshot(id, std::nullopt);
    const std::uint64_t at_most = asked;
    SparseShard copy({TableConfig("a", 2, "sgd", {}, "zeros", {})}, kPartitions, 1);
    restore(copy, dump_all(*snapshot));
    const TableRows rows = copy.export_rows(0);
    ASSERT_EQ(rows.keys, keys);
    double total = 0;
    for (std::size_t i = 0; i < kKeys; ++i) {
      const float value = rows.values[2 * i];
      total += value;
      ASSERT_EQ(value, rows.values[2 * i + 1]);
      ASSERT_LE(value, rows.values[0]);
      ASSERT_GE(value, rows.values[0] - 1);
      if (i > 0) ASSERT_LE(value, rows.values[2 * (i - 1)]) << "not a prefix";
    }
    EXPECT_GE(total, static_cast<double>(at_least));
    EXPECT_LE(total, static_cast<double>(at_most));
  }
  stop = true;
  pusher.join();
}

}  // namespace
}  // namespace embermesh

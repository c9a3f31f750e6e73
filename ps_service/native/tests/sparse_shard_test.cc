#include "sparse_shard.h"

#include <gtest/gtest.h>

#include <numeric>
#include <stdexcept>

#include "shard_fixture.h"

namespace embermesh {
namespace {

using Keys = std::vector<std::uint64_t>;

TEST(SparseShard, ReadingNeverInsertsAndInsertingReadsTheSame) {
  SparseShard shard(two_tables(), 8, 1);
  const Keys keys = {0, ~0ULL, 1ULL << 63, 5, 5};
  const auto peeked = pull(shard, {2, 3}, keys, false);
  EXPECT_EQ(shard.rows(), (Keys{0, 0}));
  EXPECT_EQ(pull(shard, {2, 3}, keys, true), peeked);
  EXPECT_EQ(shard.rows(), (Keys{2, 2}));
  EXPECT_EQ(peeked.size(), 2U * 3 + 3 * 5);
}

TEST(SparseShard, PushSkipsMissingKeysByPosition) {
  SparseShard shard({make_table("a", 1, "sgd", {{"lr", 1.0}})}, 4, 1);
  const auto before = pull(shard, {2}, {10, 30}, true);
  const std::vector<float> grads = {1, 2, 3};
  const PushResult result = shard.push(std::vector<std::uint32_t>{3}, Keys{10, 20, 30}, grads);
  EXPECT_EQ(result.applied, 2U);
  EXPECT_EQ(result.missing, 1U);
  const auto after = pull(shard, {2}, {10, 30}, false);
  EXPECT_EQ(after[0], before[0] - 1.0F);
  EXPECT_EQ(after[1], before[1] - 3.0F);
}

TEST(SparseShard, ManyDuplicatesAcrossGroupsAreOneStep) {
  SparseShard summed({make_table("a", 2)}, 1, 1);
  SparseShard once({make_table("a", 2)}, 1, 1);
  constexpr std::uint32_t kCopies = 1000;
  const Keys keys(2 * kCopies, 7);
  std::vector<float> grads(4 * kCopies);
  std::iota(grads.begin(), grads.end(), -100.0F);
  float sums[2] = {0.0F, 0.0F};
  for (std::size_t i = 0; i < grads.size(); ++i) sums[i % 2] += grads[i];
  pull(summed, {1}, {7}, true);
  pull(once, {1}, {7}, true);
  summed.push(std::vector<std::uint32_t>{kCopies, kCopies}, keys, grads);
  once.push(std::vector<std::uint32_t>{1}, Keys{7}, sums);
  EXPECT_EQ(summed.dump_partition(0), once.dump_partition(0));
}

TEST(SparseShard, RowsOfTheWidestTableFit) {
  SparseShard shard({make_table("wide", kMaxDim, "adam"), make_table("thin", 1, "sgd")}, 2, 1);
  Keys keys(100);
  std::iota(keys.begin(), keys.end(), 0);
  const auto wide = pull(shard, {50, 50}, keys, true);
  EXPECT_EQ(pull(shard, {50, 50}, keys, false), wide);
}

// Of two tables of one width, so that nothing but the table tells their rows apart.
TEST(SparseShard, KeysOfEqualHashesInTwoTablesAreTwoRows) {
  const auto twins = [](std::uint64_t key) { return key ^ table_salt(0) ^ table_salt(1); };
  SparseShard both({make_table("a", 4), make_table("b", 4)}, 4, 1);
  SparseShard apart({make_table("a", 4), make_table("b", 4)}, 4, 1);
  Keys keys(600);
  for (std::size_t i = 0; i < 300; ++i) {
    keys[i] = i;
    keys[300 + i] = twins(i);
    ASSERT_EQ(row_hash(table_salt(0), keys[i]), row_hash(table_salt(1), keys[300 + i]));
  }
  const Keys first(keys.begin(), keys.begin() + 300);
  const Keys second(keys.begin() + 300, keys.end());
  std::vector<float> values = pull(apart, {300, 0}, first, true);
  for (const float value : pull(apart, {0, 300}, second, true)) values.push_back(value);
  EXPECT_EQ(pull(both, {300, 300}, keys, true), values);
  EXPECT_EQ(both.rows(), (Keys{300, 300}));

  std::vector<float> grads(2400);
  std::iota(grads.begin(), grads.end(), -7.0F);
  EXPECT_EQ(both.push(std::vector<std::uint32_t>{300, 300}, keys, grads).applied, 600U);
  apart.push(std::vector<std::uint32_t>{0, 300}, second, std::span(grads).subspan(1200));
  apart.push(std::vector<std::uint32_t>{300, 0}, first, std::span(grads).first(1200));
  for (int p = 0; p < 4; ++p) EXPECT_EQ(both.dump_partition(p), apart.dump_partition(p));

  const Keys gone(keys.begin() + 100, keys.begin() + 300);
  EXPECT_EQ(both.erase(std::vector<std::uint32_t>{200, 0}, gone), 200U);
  EXPECT_EQ(both.rows(), (Keys{100, 300}));
  both.compact();
  EXPECT_EQ(both.export_rows(1).keys.size(), 300U);
  EXPECT_EQ(both.export_rows(1).values, apart.export_rows(1).values);
  const auto result = both.push(std::vector<std::uint32_t>{300, 300}, keys, grads);
  EXPECT_EQ(result.missing, 200U);
}

// With as many tables as there may be, 16 of the 32 bits of a row's name are left for its number.
TEST(SparseShard, APartitionThatIsFullSaysSoAndLosesNothing) {
  std::vector<TableConfig> tables;
  const TableConfig model = make_table("model", 1, "sgd");
  for (std::size_t i = 0; i < kMaxTables; ++i) {
    tables.push_back(model);
    tables.back().name = "t" + std::to_string(i);
  }
  SparseShard shard(std::move(tables), 1, 1);
  constexpr std::size_t kMost = 63 * 1024;  // whole slabs of 1024 rows, below 65,535
  Keys keys(kMost + 3000);
  std::iota(keys.begin(), keys.end(), 0);
  std::vector<std::uint32_t> counts(kMaxTables, 0);
  counts[7] = static_cast<std::uint32_t>(keys.size());
  const auto initial = pull(shard, counts, keys, false);
  try {
    static_cast<void>(pull(shard, counts, keys, true));
    FAIL() << "expected TooManyRows";
  } catch (const TooManyRows& error) {
    EXPECT_EQ(
        std::string(error.what()),
        "rows: partition 0 has no room for a row of table 't7': with 65536 tables a partition "
        "holds at most 64512 rows of 4 bytes; more partitions or eviction make room");
  }
  EXPECT_EQ(shard.rows()[7], kMost);
  EXPECT_EQ(pull(shard, counts, keys, false), initial);  // all rows are whole
  std::vector<float> grads(keys.size(), 1.0F);
  EXPECT_EQ(shard.push(counts, keys, grads).applied, kMost);
  const TableRows rows = shard.export_rows(7);
  counts[7] = 500;
  EXPECT_EQ(shard.erase(counts, std::span(rows.keys).first(500)), 500U);
  counts[7] = 0;
  counts.back() = 500;
  pull(shard, counts, Keys(keys.begin(), keys.begin() + 500), true);
  EXPECT_EQ(shard.rows().back(), 500U);
}

TEST(SparseShard, BadRequestsThrowAndChangeNothing) {
  SparseShard shard(two_tables(), 4, 1);
  EXPECT_THROW(static_cast<void>(pull(shard, {}, {}, true)), std::invalid_argument);
  EXPECT_THROW(static_cast<void>(pull(shard, {1, 0, 0}, {1}, true)), std::invalid_argument);
  EXPECT_THROW(static_cast<void>(pull(shard, {1, 1}, {1}, true)), std::invalid_argument);
  const std::vector<std::uint32_t> counts = {1, 0};
  EXPECT_THROW(shard.push(counts, Keys{1}, std::vector<float>(2)), std::invalid_argument);
  EXPECT_THROW(static_cast<void>(shard.dump_partition(4)), std::invalid_argument);
  EXPECT_THROW(static_cast<void>(shard.export_rows(-1)), std::invalid_argument);
  EXPECT_EQ(shard.rows(), (Keys{0, 0}));
  EXPECT_THROW(SparseShard(two_tables(), 3, 1), std::invalid_argument);
  EXPECT_THROW(SparseShard({}, 4, 1), std::invalid_argument);
}

TEST(SparseShard, ExportIsSortedByUnsignedKey) {
  SparseShard shard(two_tables(), 16, 1);
  pull(shard, {4, 0}, {~0ULL, 3, 1ULL << 63, 0}, true);
  const TableRows rows = shard.export_rows(0);
  EXPECT_EQ(rows.keys, (Keys{0, 3, 1ULL << 63, ~0ULL}));
  EXPECT_EQ(rows.values.size(), 4U * (3 + 7));
}

TEST(SparseShard, ClearGivesTheMemoryBack) {
  SparseShard shard(two_tables(), 4, 1);
  Keys keys(10000);
  std::iota(keys.begin(), keys.end(), 0);
  pull(shard, {5000, 5000}, keys, true);
  const std::size_t full = shard.bytes();
  EXPECT_GE(full, 5000 * (40 + 40 + 2 * 16));
  shard.clear();
  EXPECT_EQ(shard.bytes(), 0U);
  pull(shard, {5000, 5000}, keys, true);
  EXPECT_EQ(shard.bytes(), full);
}

TEST(SparseShard, ErasedKeysAreGoneAndTheOthersStay) {
  SparseShard shard(two_tables(), 4, 1);
  Keys keys(10000);
  std::iota(keys.begin(), keys.end(), 0);
  const auto values = pull(shard, {5000, 5000}, keys, true);
  const std::size_t full = shard.bytes();
  const Keys gone(keys.begin() + 500, keys.begin() + 5000);
  EXPECT_EQ(shard.erase(std::vector<std::uint32_t>{4500, 0}, gone), 4500U);
  EXPECT_EQ(shard.erase(std::vector<std::uint32_t>{4500, 0}, gone), 0U);
  EXPECT_EQ(shard.rows(), (Keys{500, 5000}));
  shard.compact();
  EXPECT_LT(shard.bytes(), full);
  EXPECT_EQ(pull(shard, {5000, 5000}, keys, false), values);  // erased ones read their initial rows
}

TEST(SparseShard, ATeamGivesTheBitsOfOneThread) {
  SparseShard one(two_tables(), 16, 1);
  SparseShard team(two_tables(), 16, 1, 3);
  Keys keys(12000);
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = i * i % 1000;
  const std::vector<std::uint32_t> counts = {4000, 2000, 1000, 5000};
  EXPECT_EQ(pull(one, counts, keys, true), pull(team, counts, keys, true));
  std::vector<float> grads(one.request_floats(counts, keys.size()));
  std::iota(grads.begin(), grads.end(), -3.0F);
  one.push(counts, keys, grads);
  EXPECT_EQ(team.push(counts, keys, grads).applied, keys.size());
  for (int p = 0; p < 16; ++p) EXPECT_EQ(one.dump_partition(p), team.dump_partition(p));
  EXPECT_THROW(SparseShard(two_tables(), 4, 1, 0), std::invalid_argument);
}

}  // namespace
}  // namespace embermesh

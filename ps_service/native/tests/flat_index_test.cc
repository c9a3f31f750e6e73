#include "flat_index.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "hash.h"

namespace embermesh {
namespace {

// With and without metadata: buckets of four and of five.
class FlatIndexTest : public testing::TestWithParam<bool> {
 protected:
  StandbyMemory chunks_;
  SlabPool pool_{FlatIndex::kPageBytes, chunks_};
  static constexpr std::uint32_t kTables = 5;
  FlatIndex index_{pool_, RowNames(kTables), GetParam()};

  void add(std::uint64_t hash, RowNumber row, std::uint32_t table = 0) {
    index_.reserve_one();
    index_.fill(index_.find_or_next(table, hash), table, hash, row);
  }

  [[nodiscard]] RowNumber row_of(std::uint64_t hash, std::uint32_t table = 0) const {
    const Slot slot = index_.find(table, hash);
    if (slot) EXPECT_EQ(slot.table(), table);
    return !slot ? kNoRow : slot.row();
  }

  // Hashes with these low halves, in which the index looks for their home.
  void agrees_with_a_map(std::uint64_t low_mask) {
    std::map<std::pair<std::uint64_t, std::uint32_t>, RowNumber> model;
    std::mt19937_64 random(3);
    for (RowNumber i = 0; i < 60000; ++i) {
      const std::uint64_t hash =
          (random() % 64 << 32 | (mix64(random() % 200) & low_mask)) + (i % 7 == 0 ? 0 : 5);
      const auto table = static_cast<std::uint32_t>(random() % kTables);
      const auto found = model.find({hash, table});
      ASSERT_EQ(row_of(hash, table), found == model.end() ? kNoRow : found->second);
      if (found == model.end()) {
        model[{hash, table}] = i;
        add(hash, i, table);
      } else if (random() % 3 != 0) {
        index_.erase(index_.find(table, hash));
        model.erase(found);
      }
      ASSERT_EQ(index_.size(), model.size());
    }
    for (const auto& [key, row] : model) ASSERT_EQ(row_of(key.first, key.second), row);
    std::size_t visited = 0;
    index_.for_each([&](Slot slot) {
      ASSERT_EQ(model.at({slot.hash(), slot.table()}), slot.row());
      ++visited;
    });
    EXPECT_EQ(visited, model.size());
  }
};

TEST_P(FlatIndexTest, AnEmptyOneFindsNothingAndHoldsNoMemory) {
  EXPECT_FALSE(index_.find(0, 0));
  EXPECT_EQ(index_.bytes(), 0U);
  EXPECT_FALSE(FlatIndex::Reader(index_).find(0, 0));
}

TEST_P(FlatIndexTest, EveryHashIsLegal) {
  constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();
  const std::vector<std::uint64_t> hashes = {0, 1, kMax, kMax / 2, kMax / 2 + 1, 1ULL << 32};
  for (const std::uint64_t hash : hashes) {
    EXPECT_EQ(row_of(hash), kNoRow);
    add(hash, static_cast<RowNumber>(hash % 1000));
  }
  for (const std::uint64_t hash : hashes) EXPECT_EQ(row_of(hash), hash % 1000);
  index_.erase(index_.find(0, 0));
  EXPECT_EQ(row_of(0), kNoRow);
  EXPECT_EQ(row_of(kMax), kMax % 1000);
}

TEST_P(FlatIndexTest, AgreesWithAMapWhenHashesSpread) { agrees_with_a_map(0xFFFFFFFF); }
TEST_P(FlatIndexTest, AgreesWithAMapWhenHashesCrowd) { agrees_with_a_map(0xF0000000); }
TEST_P(FlatIndexTest, AgreesWithAMapWhenProbesWrapRound) {
  for (std::uint64_t i = 0; i < 500; ++i) add(i << 32 | 0xFFFFFFFF, static_cast<RowNumber>(i));
  for (std::uint64_t i = 0; i < 500; i += 2) index_.erase(index_.find(0, i << 32 | 0xFFFFFFFF));
  for (std::uint64_t i = 0; i < 500; ++i) {
    EXPECT_EQ(row_of(i << 32 | 0xFFFFFFFF), i % 2 == 0 ? kNoRow : i);
  }
}

TEST_P(FlatIndexTest, EqualHashesOfSeveralTablesAreSeveralEntries) {
  for (const std::uint64_t hash : {std::uint64_t{0}, ~std::uint64_t{0}}) {
    for (std::uint32_t table = 0; table < kTables; ++table) {
      EXPECT_EQ(row_of(hash, table), kNoRow);
      add(hash, 10 + table, table);
    }
    for (std::uint32_t table = 0; table < kTables; ++table)
      EXPECT_EQ(row_of(hash, table), 10 + table);
    for (const std::uint32_t gone : {0U, 3U}) index_.erase(index_.find(gone, hash));
    EXPECT_EQ(row_of(hash, 0), kNoRow);
    EXPECT_EQ(row_of(hash, 3), kNoRow);
    for (const std::uint32_t table : {1U, 2U, 4U}) EXPECT_EQ(row_of(hash, table), 10 + table);
    index_.find(2, hash).set_row(77);
    EXPECT_EQ(row_of(hash, 2), 77U);
    EXPECT_EQ(row_of(hash, 1), 11U);
  }
}

TEST(RowNames, TableAndRowShareTheBitsAndNoNameStandsForNothing) {
  for (const std::size_t tables : {1, 2, 3, 26, 32, 1024, 65536}) {
    const RowNames names(tables);
    EXPECT_GE(std::uint64_t{names.bound()} + 1, (std::uint64_t{1} << 32) / (2 * tables));
    const auto last = static_cast<std::uint32_t>(tables - 1);
    for (const std::uint32_t table : {0U, last / 2, last}) {
      for (const RowNumber row : {0U, 1U, names.bound() - 1}) {
        const std::uint32_t name = names.name(table, row);
        EXPECT_EQ(names.table(name), table);
        EXPECT_EQ(names.row(name), row);
        EXPECT_NE(name, kNoRow);
      }
    }
  }
  EXPECT_EQ(RowNames(1).bound(), kNoRow);
}

TEST_P(FlatIndexTest, CostsAtMost24BytesAnEntryAndShrinksAgain) {
  constexpr std::uint64_t kEntries = 100000;
  for (std::uint64_t i = 0; i < kEntries; ++i) {
    add(mix64(i), static_cast<RowNumber>(i));
    if (i > 20000) {
      ASSERT_LE(index_.bytes(), 24 * (i + 1));
    }
    ASSERT_LE(4 * index_.size(), 13 * index_.buckets());
  }
  for (std::uint64_t i = 0; i < kEntries - 1000; ++i) index_.erase(index_.find(0, mix64(i)));
  index_.shrink();
  EXPECT_LE(index_.bytes(), 40 * 1000);
  for (std::uint64_t i = 0; i < kEntries; ++i) {
    EXPECT_EQ(row_of(mix64(i)), i < kEntries - 1000 ? kNoRow : i);
  }
}

TEST_P(FlatIndexTest, FewEntriesAreNotAtHome) {
  constexpr std::uint64_t kEntries = 100000;
  for (std::uint64_t i = 0; i < kEntries; ++i) add(mix64(i), static_cast<RowNumber>(i));
  std::size_t away = 0;
  const FlatIndex::Reader reader(index_);
  for (std::uint64_t i = 0; i < kEntries; ++i) {
    const Slot slot = reader.find(0, mix64(i));
    if (slot) EXPECT_EQ(slot.row(), i);
    away += slot ? 0 : 1;
  }
  EXPECT_LE(away, kEntries * (GetParam() ? 25 : 10) / 100);
}

TEST_P(FlatIndexTest, MetaStaysWithItsEntry) {
  if (!GetParam()) GTEST_SKIP() << "an index without metadata";
  for (std::uint64_t i = 0; i < 1000; ++i) {
    add(mix64(i), static_cast<RowNumber>(i));
    index_.find(0, mix64(i)).meta() = static_cast<std::uint32_t>(3 * i + 1);
  }
  for (std::uint64_t i = 0; i < 900; ++i) index_.erase(index_.find(0, mix64(i)));
  index_.shrink();
  for (std::uint64_t i = 900; i < 1000; ++i) EXPECT_EQ(index_.find(0, mix64(i)).meta(), 3 * i + 1);
}

INSTANTIATE_TEST_SUITE_P(Layouts, FlatIndexTest, testing::Bool(), [](const auto& info) {
  return std::string(info.param ? "WithMeta" : "WithoutMeta");
});

}  // namespace
}  // namespace embermesh

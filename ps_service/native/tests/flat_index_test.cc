#include "flat_index.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <random>
#include <utility>

#include "hash.h"

namespace embermesh {
namespace {

std::uint32_t hash_of(std::uint32_t table, std::uint64_t key) {
  return static_cast<std::uint32_t>(row_hash(table_salt(table), key));
}

void add(FlatIndex& index, std::uint32_t table, std::uint64_t key, RowNumber row) {
  index.reserve_one(hash_of);
  index.insert(table, key, hash_of(table, key), row);
}

TEST(FlatIndex, AnEmptyOneFindsNothingAndHoldsNoMemory) {
  const FlatIndex index;
  EXPECT_EQ(index.find(0, 0, hash_of(0, 0)), kNoRow);
  EXPECT_EQ(index.bytes(), 0U);
}

TEST(FlatIndex, AgreesWithAMapWhileItGrows) {
  FlatIndex index;
  std::map<std::pair<std::uint32_t, std::uint64_t>, RowNumber> model;
  std::mt19937_64 random(3);
  constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();
  for (const std::uint64_t key : {std::uint64_t{0}, kMax, kMax / 2, kMax / 2 + 1}) {
    for (const std::uint32_t table : {0U, 65535U}) {
      model[{table, key}] = static_cast<RowNumber>(model.size());
      add(index, table, key, model[{table, key}]);
    }
  }
  for (int i = 0; i < 20000; ++i) {
    const auto table = static_cast<std::uint32_t>(random() % 3);
    const std::uint64_t key = random() % 30000;
    const auto found = model.find({table, key});
    const RowNumber row = index.find(table, key, hash_of(table, key));
    if (found != model.end()) {
      ASSERT_EQ(row, found->second);
      continue;
    }
    ASSERT_EQ(row, kNoRow);
    const auto next = static_cast<RowNumber>(model.size());
    model[{table, key}] = next;
    add(index, table, key, next);
  }
  EXPECT_EQ(index.size(), model.size());
  EXPECT_LE(index.size() * 4, index.capacity() * 3);
  std::size_t visited = 0;
  index.for_each([&](std::uint32_t table, std::uint64_t key, RowNumber row) {
    ASSERT_EQ((model.at({table, key})), row);
    ++visited;
  });
  EXPECT_EQ(visited, model.size());
}

TEST(FlatIndex, SurvivesKeysThatAllCollide) {
  FlatIndex index;
  const auto same = [](std::uint32_t, std::uint64_t) { return 7U; };
  for (RowNumber row = 0; row < 200; ++row) {
    index.reserve_one(same);
    index.insert(1, row, 7, row);
  }
  for (RowNumber row = 0; row < 200; ++row) EXPECT_EQ(index.find(1, row, 7), row);
  EXPECT_EQ(index.find(1, 200, 7), kNoRow);
}

}  // namespace
}  // namespace embermesh

#include "row_arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <utility>

namespace embermesh {
namespace {

TEST(RowArena, WidthsFillWholeLinesWhereThatIsCheap) {
  EXPECT_EQ(RowArena::units_for(1), 1U);
  EXPECT_EQ(RowArena::units_for(8), 2U);
  EXPECT_EQ(RowArena::units_for(32), 8U);   // dim 16 with adagrad: two lines
  EXPECT_EQ(RowArena::units_for(49), 13U);  // dim 16 with adam: 208 bytes, a fourth line is dear
  EXPECT_EQ(RowArena::units_for(60), 16U);
  EXPECT_EQ(RowArena::units_for(120), 32U);
}

class RowArenaTest : public testing::TestWithParam<std::uint32_t> {};

TEST_P(RowArenaTest, RowsAreAlignedAndDisjointWhateverComesAndGoes) {
  StandbyMemory chunks;
  SlabPool pool(1024, chunks);
  RowArena arena(pool, GetParam(), kNoRow);
  const std::size_t floats = GetParam() * RowArena::kUnitFloats;
  std::vector<std::pair<RowNumber, float>> rows;
  std::mt19937 random(5);
  for (int i = 0; i < 3000; ++i) {
    if (!rows.empty() && random() % 5 < 2) {
      const std::size_t victim = random() % rows.size();
      arena.free(rows[victim].first);
      rows[victim] = rows.back();
      rows.pop_back();
    } else {
      const RowNumber row = arena.allocate();
      ASSERT_EQ(reinterpret_cast<std::uintptr_t>(arena.row(row)) % 16, 0U);
      std::fill_n(arena.row(row), floats, static_cast<float>(i));
      rows.emplace_back(row, static_cast<float>(i));
    }
    ASSERT_EQ(arena.rows(), rows.size());
  }
  for (auto& [row, value] : rows) {
    arena.pack(row);
    const float* memory = arena.row(row);
    EXPECT_TRUE(std::all_of(memory, memory + floats, [&](float v) { return v == value; }));
  }
  const std::size_t slab_rows = 64 / GetParam();
  EXPECT_LE(arena.bytes(), ((rows.size() + slab_rows - 1) / slab_rows) * (1024 + 16));
}

INSTANTIATE_TEST_SUITE_P(Widths, RowArenaTest, testing::Values(1, 3, 8, 13, 64));

TEST(RowArena, GivesSlabsBackAsRowsGo) {
  StandbyMemory chunks;
  SlabPool pool(SlabPool::kChunkBytes / 2, chunks);
  RowArena arena(pool, 8, kNoRow);
  std::vector<RowNumber> rows;
  for (int i = 0; i < 40000; ++i) rows.push_back(arena.allocate());
  EXPECT_GE(pool.mapped_bytes(), 40000U * 128);
  EXPECT_FALSE(arena.is_sparse());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (i % 10 != 0) arena.free(rows[i]);
  }
  EXPECT_TRUE(arena.is_sparse());
  for (std::size_t i = 0; i < rows.size(); i += 10) arena.pack(rows[i]);
  EXPECT_FALSE(arena.is_sparse());
  for (std::size_t i = 0; i < rows.size(); i += 10) arena.free(rows[i]);
  EXPECT_EQ(arena.bytes(), 0U);
  EXPECT_EQ(pool.mapped_bytes(), SlabPool::kChunkBytes);
  pool.trim();
  EXPECT_EQ(pool.mapped_bytes(), 0U);
}

TEST(RowArena, NumbersStayBelowTheBoundAndAreUsedAgain) {
  StandbyMemory chunks;
  SlabPool pool(1024, chunks);
  RowArena arena(pool, 13, 19);  // four rows to a slab
  std::set<RowNumber> numbers;
  while (!arena.is_full()) numbers.insert(arena.allocate());
  EXPECT_EQ(numbers.size(), arena.most_rows());
  EXPECT_EQ(numbers.size(), 16U);  // of whole slabs
  EXPECT_LT(*numbers.rbegin(), 19U);
  arena.free(5);
  EXPECT_FALSE(arena.is_full());
  EXPECT_EQ(arena.allocate(), 5U);
}

TEST(RowArena, MovingHandsTheRowsOver) {
  StandbyMemory chunks;
  SlabPool pool(1024, chunks);
  RowArena from(pool, 2, kNoRow);
  const RowNumber row = from.allocate();
  from.row(row)[0] = 5.0F;
  RowArena to(std::move(from));
  EXPECT_EQ(to.row(row)[0], 5.0F);
  RowArena other(pool, 2, kNoRow);
  static_cast<void>(other.allocate());
  other = std::move(to);
  EXPECT_EQ(other.row(row)[0], 5.0F);
  EXPECT_EQ(other.allocate(), 1U);
}

TEST(SlabPool, SlabsAreDistinctAndReused) {
  StandbyMemory chunks;
  SlabPool pool(16384, chunks);
  std::vector<std::byte*> taken;
  for (int i = 0; i < 300; ++i) taken.push_back(pool.acquire());
  EXPECT_EQ(std::set(taken.begin(), taken.end()).size(), 300U);
  EXPECT_EQ(pool.mapped_bytes(), 3 * SlabPool::kChunkBytes);
  pool.release(std::span(taken).first(200));
  pool.trim();
  std::set<std::byte*> again(taken.begin() + 200, taken.end());
  for (int i = 0; i < 200; ++i) again.insert(pool.acquire());
  EXPECT_EQ(again.size(), 300U);
}

}  // namespace
}  // namespace embermesh

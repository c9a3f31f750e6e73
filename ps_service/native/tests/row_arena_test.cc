#include "row_arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>

namespace embermesh {
namespace {

TEST(RowArena, RowsAreAlignedDisjointAndNeverMove) {
  SlabPool pool(1024);
  RowArena arena(pool);
  std::vector<std::pair<RowNumber, float*>> rows;
  for (std::uint32_t i = 0; i < 500; ++i) {
    const std::uint32_t units = 1 + i % 16;
    const RowNumber row = arena.allocate(units);
    float* memory = arena.row(row);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % 16, 0U);
    std::fill_n(memory, units * RowArena::kUnitFloats, static_cast<float>(i));
    rows.emplace_back(row, memory);
  }
  for (std::uint32_t i = 0; i < 500; ++i) {
    EXPECT_EQ(arena.row(rows[i].first), rows[i].second);
    const std::size_t floats = (1 + i % 16) * RowArena::kUnitFloats;
    EXPECT_TRUE(std::all_of(rows[i].second, rows[i].second + floats,
                            [i](float value) { return value == static_cast<float>(i); }));
  }
}

TEST(RowArena, ARowMayFillAWholeSlab) {
  SlabPool pool(1024);
  RowArena arena(pool);
  const RowNumber first = arena.allocate(64);
  const RowNumber second = arena.allocate(64);
  EXPECT_EQ(second - first, 64U);
  EXPECT_EQ(arena.bytes(), 2048U);
}

TEST(RowArena, GivesItsSlabsBackToThePool) {
  SlabPool pool(SlabPool::kChunkBytes);
  std::byte* first = nullptr;
  {
    RowArena arena(pool);
    first = reinterpret_cast<std::byte*>(arena.row(arena.allocate(1)));
  }
  EXPECT_EQ(pool.acquire(), first);
}

TEST(RowArena, MovingHandsTheRowsOver) {
  SlabPool pool(1024);
  RowArena from(pool);
  const RowNumber row = from.allocate(2);
  from.row(row)[0] = 5.0F;
  RowArena to(std::move(from));
  EXPECT_EQ(to.row(row)[0], 5.0F);
  RowArena other(pool);
  static_cast<void>(other.allocate(1));
  other = std::move(to);
  EXPECT_EQ(other.row(row)[0], 5.0F);
  EXPECT_EQ(other.allocate(1), 2U);
}

TEST(SlabPool, SlabsAreDistinctAndReused) {
  SlabPool pool(16384);
  std::set<std::byte*> taken;
  for (int i = 0; i < 300; ++i) taken.insert(pool.acquire());
  EXPECT_EQ(taken.size(), 300U);
  pool.release({taken.begin(), taken.end()});
  for (int i = 0; i < 300; ++i) EXPECT_TRUE(taken.contains(pool.acquire()));
}

}  // namespace
}  // namespace embermesh

#include "huge_array.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <utility>

namespace embermesh {
namespace {

TEST(HugeArray, BeginsAsZerosAndKeepsWhatIsWritten) {
  for (const std::size_t size : {1U, 5U, 8192U, 131'071U, 131'072U, 300'001U}) {
    HugeArray<std::uint64_t> array(size);
    ASSERT_EQ(array.size(), size);
    ASSERT_EQ(std::ranges::count(array.items(), 0U), static_cast<std::ptrdiff_t>(size));
    std::ranges::fill(array.items(), 7U);
    HugeArray<std::uint64_t> other = std::exchange(array, HugeArray<std::uint64_t>(3));
    EXPECT_EQ(array.data()[2], 0U);
    EXPECT_EQ(std::ranges::count(other.items(), 7U), static_cast<std::ptrdiff_t>(size));
  }
}

TEST(HugeArray, MayBeEmpty) {
  HugeArray<std::uint64_t> empty(0);
  EXPECT_TRUE(empty.items().empty());
  EXPECT_EQ(HugeArray<std::uint64_t>().size(), 0U);
}

// Large ones begin where a huge page may; what is freed and fetched again is zero again.
TEST(HugeArray, IsAlignedToHugePages) {
  constexpr std::size_t kItems = (std::size_t{3} << 20) / sizeof(std::uint64_t);
  for (int round = 0; round < 5; ++round) {
    HugeArray<std::uint64_t> array(kItems);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(array.data()) % (std::size_t{2} << 20), 0U);
    EXPECT_EQ(array.data()[kItems - 1], 0U);
    array.data()[kItems - 1] = 1;
  }
}

}  // namespace
}  // namespace embermesh

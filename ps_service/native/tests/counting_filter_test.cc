#include "counting_filter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "hash.h"

namespace embermesh {
namespace {

std::uint64_t mixed(std::uint64_t i) { return mix64(i * 0x9E3779B97F4A7C15ULL + 1); }

TEST(CountingFilter, CountsAreNeverTooSmallAndStopAtFifteen) {
  CountingFilter filter(CountingFilter::shape_for(1000, 0.01));
  for (std::uint32_t round = 1; round <= 20; ++round) {
    for (std::uint64_t key = 0; key < 1000; ++key) {
      const std::uint32_t count = filter.count(mixed(key));
      ASSERT_GE(count, std::min(round, CountingFilter::kMaxCount));
      ASSERT_LE(count, CountingFilter::kMaxCount);
    }
  }
}

TEST(CountingFilter, FullFiltersErrAsRarelyAsTheyWereAskedTo) {
  constexpr std::uint64_t kKeys = 200000;
  for (const double error : {0.2, 0.05, 0.01, 0.001}) {
    const auto shape = CountingFilter::shape_for(kKeys, error);
    CountingFilter filter(shape);
    for (std::uint64_t key = 0; key < kKeys; ++key) filter.count(mixed(key));
    std::uint64_t wrong = 0;
    CountingFilter probe = filter;  // probing counts too, but only half as many keys again
    for (std::uint64_t key = kKeys; key < 2 * kKeys; ++key) {
      if (key % 1000 == 0) probe = filter;
      wrong += probe.count(mixed(key)) > 1 ? 1 : 0;
    }
    EXPECT_LE(wrong, error * kKeys * 1.1 + 20) << error;
    // And no more memory than that takes: twice what an ideal Bloom filter needs, in 4-bit cells.
    const double ideal_cells = -std::log(error) / (std::log(2.0) * std::log(2.0)) * kKeys;
    EXPECT_LE(static_cast<double>(shape.bytes()) * 2, 2.5 * ideal_cells) << error;
  }
}

TEST(CountingFilter, AnEndlessStreamOfNewKeysKeepsTheErrorBounded) {
  constexpr std::uint64_t kKeys = 20000;
  CountingFilter filter(CountingFilter::shape_for(kKeys, 0.01));
  std::uint64_t wrong = 0;
  for (std::uint64_t key = 0; key < 30 * kKeys; ++key) {
    const bool second = filter.count(mixed(key)) > 1;
    if (key >= 20 * kKeys && second) ++wrong;
  }
  EXPECT_LE(wrong, 0.02 * 10 * kKeys);
}

TEST(CountingFilter, KeysThatComeAgainWithinItsCapacityAreFound) {
  constexpr std::uint64_t kKeys = 20000;
  CountingFilter filter(CountingFilter::shape_for(kKeys, 0.01));
  std::uint64_t found = 0;
  std::uint64_t asked = 0;
  for (std::uint64_t key = 0; key < 10 * kKeys; ++key) {
    filter.count(mixed(key));
    if (key >= kKeys && key % 10 == 0) {  // a tenth comes back a little later
      ++asked;
      found += filter.count(mixed(key - kKeys / 20)) > 1 ? 1 : 0;
    }
  }
  EXPECT_GE(found, asked * 9 / 10);
}

TEST(CountingFilter, SmallAndHugeShapesAreLegal) {
  EXPECT_EQ(CountingFilter::shape_for(1, 0.5).blocks, 1U);
  EXPECT_GE(CountingFilter::shape_for(1e9, 0.01).bytes(), 4'000'000'000U);
  EXPECT_LE(CountingFilter::shape_for(1000, 1e-9).bytes(), 1000U * 64);
  EXPECT_LT(CountingFilter::shape_for(1000, 0.1).blocks,
            CountingFilter::shape_for(1000, 0.001).blocks);
}

}  // namespace
}  // namespace embermesh

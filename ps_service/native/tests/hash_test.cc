#include "hash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace embermesh {
namespace {

TEST(Hash, PartitionIsTheTopBits) {
  EXPECT_EQ(Partitioning(1)(~0ULL), 0U);
  EXPECT_EQ(Partitioning(2)(1ULL << 63), 1U);
  EXPECT_EQ(Partitioning(1024)(0x003FFFFFFFFFFFFFULL), 0U);
  EXPECT_EQ(Partitioning(1024)(0x0040000000000000ULL), 1U);
  EXPECT_EQ(Partitioning(65536)(~0ULL), 65535U);
}

TEST(Hash, OnlyPowersOfTwoAreValid) {
  for (const std::int64_t good : {1, 2, 1024, 65536}) EXPECT_TRUE(Partitioning::is_valid(good));
  for (const std::int64_t bad : {-2, 0, 3, 131072}) EXPECT_FALSE(Partitioning::is_valid(bad));
}

TEST(Hash, EveryInputBitFlipsAboutHalfOfTheOutput) {
  const std::uint64_t salt = table_salt(5);
  for (int bit = 0; bit < 64; ++bit) {
    int flipped = 0;
    constexpr int kKeys = 512;
    for (std::uint64_t key = 0; key < kKeys; ++key) {
      flipped += std::popcount(row_hash(salt, key) ^ row_hash(salt, key ^ (1ULL << bit)));
    }
    EXPECT_NEAR(flipped / static_cast<double>(kKeys), 32.0, 1.5) << "input bit " << bit;
  }
}

// The index sees the low bits of keys that share a partition, that is, their top bits.
TEST(Hash, LowBitsStayUniformWithinOnePartition) {
  const Partitioning partition_of(64);
  const std::uint64_t salt = table_salt(0);
  std::vector<int> buckets(64, 0);
  for (std::uint64_t key = 0; key < 64 * 64 * 64; ++key) {
    const std::uint64_t hash = row_hash(salt, key);
    if (partition_of(hash) == 7) ++buckets[hash & 63];
  }
  EXPECT_GT(*std::ranges::min_element(buckets), 64 - 6 * 8);
  EXPECT_LT(*std::ranges::max_element(buckets), 64 + 6 * 8);
}

TEST(Hash, TablesAreIndependent) {
  std::set<std::uint64_t> hashes;
  for (std::uint32_t table = 0; table < 100; ++table) {
    for (std::uint64_t key = 0; key < 100; ++key) hashes.insert(row_hash(table_salt(table), key));
  }
  EXPECT_EQ(hashes.size(), 10000U);
}

}  // namespace
}  // namespace embermesh

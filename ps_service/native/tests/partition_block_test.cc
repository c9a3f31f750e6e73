#include "partition_block.h"

#include <gtest/gtest.h>

#include <numeric>
#include <stdexcept>

#include "crc32c.h"
#include "shard_fixture.h"

namespace embermesh {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string sample_block() {
  SparseShard shard(two_tables(), 2, 1);
  std::vector<std::uint64_t> keys(60);
  std::iota(keys.begin(), keys.end(), 0);
  pull(shard, {30, 30}, keys, true);
  return shard.dump_partition(1);
}

std::string resealed(std::string block) {
  block.resize(block.size() - 4);
  const std::uint32_t crc = masked_crc(crc32c(bytes_of(block)));
  block.append(reinterpret_cast<const char*>(&crc), sizeof crc);
  return block;
}

TEST(PartitionBlock, RoundTrips) {
  const std::string block = sample_block();
  SparseShard shard(two_tables(), 2, 99);
  EXPECT_GT(shard.load_partition(bytes_of(block)), 0U);
  EXPECT_EQ(shard.dump_partition(1), block);
}

TEST(PartitionBlock, AnEmptyPartitionHasABlockToo) {
  SparseShard shard(two_tables(), 2, 1);
  const std::string empty = shard.dump_partition(0);
  pull(shard, {2, 0}, {1, 2}, true);
  pull(shard, {2, 0}, {3, 4}, true);
  EXPECT_EQ(shard.load_partition(bytes_of(empty)), 0U);
  EXPECT_EQ(shard.dump_partition(0), empty);
}

TEST(PartitionBlock, EveryFlippedBitAndEveryTruncationIsRefused) {
  const std::string block = sample_block();
  SparseShard shard(two_tables(), 2, 1);
  for (std::size_t at = 0; at < block.size(); ++at) {
    std::string damaged = block;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << (at % 8)));
    ASSERT_THROW(shard.load_partition(bytes_of(damaged)), std::invalid_argument) << at;
    ASSERT_THROW(shard.load_partition(bytes_of(block.substr(0, at))), std::invalid_argument) << at;
  }
  EXPECT_EQ(shard.bytes(), 0U);
}

// With the checksum made right again, a wrong field must still be caught or be harmless.
TEST(PartitionBlock, EveryResealedByteIsRefusedOrLoadsTheSameNumberOfRows) {
  const std::string block = sample_block();
  SparseShard reference(two_tables(), 2, 1);
  const std::size_t rows = reference.load_partition(bytes_of(block));
  SparseShard shard(two_tables(), 2, 1);
  for (std::size_t at = 0; at + 4 < block.size(); ++at) {
    for (const char value : {'\0', '\x7F', '\xFF'}) {
      std::string damaged = block;
      damaged[at] = value;
      damaged = resealed(std::move(damaged));
      try {
        ASSERT_EQ(shard.load_partition(bytes_of(damaged)), rows);
        shard.clear();
      } catch (const std::invalid_argument&) {
        ASSERT_EQ(shard.bytes(), 0U);
      }
    }
  }
}

}  // namespace
}  // namespace embermesh

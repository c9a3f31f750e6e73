// The one hash of the platform: it routes a key to its partition and places it in an index.
//
// Partition and index must look at different bits: the partition is the TOP log2(P) bits of the
// hash, the index probes from the LOW bits. Every component that routes (planner, shard, Python)
// goes through this file, so a change here is a change of the on-disk format.
#pragma once

#include <bit>
#include <cstdint>

namespace embermesh {

inline constexpr std::uint32_t kMaxPartitions = 65536;

// "moremur" (Pelle Evensen): a bijection of 64 bits in which every input bit flips every output bit
// with probability close to 1/2, so sequential keys and keys that differ in one bit spread evenly.
[[nodiscard]] constexpr std::uint64_t mix64(std::uint64_t x) noexcept {
  x ^= x >> 27;
  x *= 0x3C79AC492BA7B653ULL;
  x ^= x >> 33;
  x *= 0x1C69B3F74AC4AE35ULL;
  x ^= x >> 27;
  return x;
}

// The inverse of mix64.
[[nodiscard]] constexpr std::uint64_t unmix64(std::uint64_t x) noexcept {
  x ^= (x >> 27) ^ (x >> 54);
  x *= 0xC47C8F6B6BAFB41DULL;  // the odd constants' inverses modulo 2^64
  x ^= x >> 33;
  x *= 0xC09C5FE5BD6DFDDBULL;
  x ^= (x >> 27) ^ (x >> 54);
  return x;
}

// Constant of one table, to be computed once per batch and table.
[[nodiscard]] constexpr std::uint64_t table_salt(std::uint32_t table) noexcept {
  return mix64((std::uint64_t{table} + 1) * 0x9E3779B97F4A7C15ULL);
}

// Within one table this is a bijection of the key: two keys never share all 64 bits.
[[nodiscard]] constexpr std::uint64_t row_hash(std::uint64_t salt, std::uint64_t key) noexcept {
  return mix64(key ^ salt);
}

// The key that has this hash in the table of `salt`.
[[nodiscard]] constexpr std::uint64_t key_of(std::uint64_t salt, std::uint64_t hash) noexcept {
  return unmix64(hash) ^ salt;
}

// Splits the hash space into 2^k equal ranges.
class Partitioning {
 public:
  // `partitions` must be a power of two in [1, kMaxPartitions]; see is_valid.
  explicit constexpr Partitioning(std::uint32_t partitions) noexcept
      : shift_(63 - std::countr_zero(partitions)) {}

  [[nodiscard]] static constexpr bool is_valid(std::int64_t partitions) noexcept {
    return partitions >= 1 && partitions <= kMaxPartitions &&
           std::has_single_bit(static_cast<std::uint64_t>(partitions));
  }

  [[nodiscard]] constexpr std::uint32_t operator()(std::uint64_t hash) const noexcept {
    return static_cast<std::uint32_t>((hash >> 1) >> shift_);  // two shifts: P = 1 means 64 bits
  }

 private:
  int shift_;
};

}  // namespace embermesh

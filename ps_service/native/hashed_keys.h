// A walk over the keys of one table with their hashes, at the pace of the second-level cache.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "hash.h"
#include "unique_set.h"

namespace embermesh {

// hashes[i] = row_hash(salt, keys[i]) for all keys; eight at a time where the CPU can.
void hash_keys(std::uint64_t salt, std::span<const std::uint64_t> keys,
               std::uint64_t* hashes) noexcept;

// Calls visit(i, hash of keys[i]) for all i in turn, with the cells of the next few keys on their
// way from `set`.
template <class Visit>
[[gnu::always_inline]] inline void for_each_hashed(const UniqueSet& set, std::uint64_t salt,
                                                   std::span<const std::uint64_t> keys,
                                                   const Visit& visit) {
  constexpr std::size_t kBlock = 256;  // hashed at once; two calls would cost more than they hash
  constexpr std::size_t kAhead = 16;   // lines that the first-level cache waits for at a time
  std::array<std::uint64_t, kBlock> hashes;
  for (std::size_t first = 0; first < keys.size(); first += kBlock) {
    const std::size_t size = std::min(kBlock, keys.size() - first);
    hash_keys(salt, keys.subspan(first, size), hashes.data());
    for (std::size_t j = 0; j < std::min(kAhead, size); ++j) set.prefetch(hashes[j]);
    for (std::size_t j = 0; j < size; ++j) {
      if (j + kAhead < size) set.prefetch(hashes[j + kAhead]);
      visit(first + j, hashes[j]);
    }
  }
}

}  // namespace embermesh

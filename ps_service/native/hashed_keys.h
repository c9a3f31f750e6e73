// A walk over the keys of one table with their hashes, at the pace of the second-level cache.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "hash.h"
#include "simd.h"
#include "unique_set.h"

namespace embermesh {

// hashes[i] = row_hash(salt, keys[i]) for all keys; eight at a time where the CPU can.
void hash_keys(std::uint64_t salt, std::span<const std::uint64_t> keys,
               std::uint64_t* hashes) noexcept;

// Calls visit(first, block, hashes) for blocks of keys in turn: the number of the block's first
// key, its keys, their hashes. Before that, while the block before is visited, ask(hashes) may send
// for what the visit needs.
template <class Ask, class Visit>
[[gnu::always_inline]] inline void for_each_block(std::uint64_t salt,
                                                  std::span<const std::uint64_t> keys,
                                                  const Ask& ask, const Visit& visit) {
  constexpr std::size_t kBlock = UniqueSet::kBlock;
  constexpr std::size_t kBlocksAhead = 4;
  std::array<std::array<std::uint64_t, kBlock>, 2> hashes;  // of this block and of the next
  const auto block_at = [&](std::size_t first) {
    return keys.subspan(first, std::min<std::size_t>(kBlock, keys.size() - first));
  };
  const auto hashes_at = [&](std::size_t first) { return hashes[first / kBlock % 2].data(); };
  // A core's own foresight ends with each page, which 512 keys fill.
  const auto fetch = [&](std::size_t first) {
    if (first < keys.size()) {
      prefetch_row<Cache::kFirst>(&keys[first], block_at(first).size() * sizeof(keys[0]));
    }
  };
  const auto prepare = [&](std::size_t first) {
    if (first >= keys.size()) return;
    fetch(first + kBlocksAhead * kBlock);
    const std::span block = block_at(first);
    hash_keys(salt, block, hashes_at(first));
    ask(std::span<const std::uint64_t>(hashes_at(first), block.size()));
  };
  prepare(0);
  for (std::size_t first = 0; first < keys.size(); first += kBlock) {
    prepare(first + kBlock);
    visit(first, block_at(first), hashes_at(first));
  }
}

}  // namespace embermesh

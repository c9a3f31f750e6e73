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

// Calls visit(first, block, hashes) for blocks of keys in turn: the number of the block's first
// key, its keys, their hashes. The cells of the next block are on their way from `set` meanwhile.
template <class Visit>
[[gnu::always_inline]] inline void for_each_block(const UniqueSet& set, std::uint64_t salt,
                                                  std::span<const std::uint64_t> keys,
                                                  const Visit& visit) {
  constexpr std::size_t kBlock = UniqueSet::kBlock;
  std::array<std::array<std::uint64_t, kBlock>, 2> hashes;  // of this block and of the next
  const auto block_at = [=](std::size_t first) {
    return keys.subspan(first, std::min<std::size_t>(kBlock, keys.size() - first));
  };
  const auto hashes_at = [&](std::size_t first) { return hashes[first / kBlock % 2].data(); };
  const auto ask_for = [&](std::size_t first) {
    if (first >= keys.size()) return;
    const std::span block = block_at(first);
    hash_keys(salt, block, hashes_at(first));
    set.prefetch(std::span(hashes_at(first), block.size()));
  };
  ask_for(0);
  for (std::size_t first = 0; first < keys.size(); first += kBlock) {
    ask_for(first + kBlock);
    visit(first, block_at(first), hashes_at(first));
  }
}

}  // namespace embermesh

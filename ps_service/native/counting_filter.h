// How often a key came by, without a row for it: a blocked counting Bloom filter.
//
// A key belongs to one cache line of 128 counters of 4 bits and counts in k of them (Putze, Sanders
// & Singler 2007: one miss per key). Only its smallest counters grow (Estan & Varghese 2002), so a
// count is never too small, and too large only where all k counters are shared.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "simd.h"

namespace embermesh {

// Not thread-safe: its partition's lock guards it.
class CountingFilter {
 public:
  static constexpr std::uint32_t kMaxCount = 15;

  // What a filter for `keys` distinct keys needs so that a key that never came reads zero with
  // probability >= 1 - error. A pure function of its arguments.
  struct Shape {
    std::size_t blocks;      // cache lines
    std::uint32_t probes;    // counters per key, k
    std::uint64_t capacity;  // the keys it is made for
    [[nodiscard]] std::size_t bytes() const noexcept { return blocks * kCacheLine; }
  };
  [[nodiscard]] static Shape shape_for(double keys, double error);
  // Share of new keys that read a count above zero, with `keys_per_block` keys in every block.
  [[nodiscard]] static double false_share(double keys_per_block, std::uint32_t probes) noexcept;

  // Throws std::bad_alloc.
  explicit CountingFilter(const Shape& shape) : shape_(shape), blocks_(shape.blocks) {}

  // Counts one occurrence and returns the key's count, at most kMaxCount. `hash` must be well
  // mixed.
  //
  // After `capacity` new keys the filter is full; from then on each new key pays for its place by
  // ageing: a hand goes round and halves all counters once per `capacity` new keys. Keys that come
  // once are forgotten, so the error stays bounded in an endless stream.
  std::uint32_t count(std::uint64_t hash) noexcept;

  [[nodiscard]] std::size_t bytes() const noexcept { return shape_.bytes(); }

 private:
  struct alignas(kCacheLine) Block {
    std::array<std::uint64_t, 8> words{};
  };
  void age_by_one_key() noexcept;

  Shape shape_;
  std::vector<Block> blocks_;
  std::uint64_t new_keys_ = 0;
  std::uint64_t owed_ = 0;  // blocks * new keys since the hand last moved
  std::size_t hand_ = 0;
};

}  // namespace embermesh

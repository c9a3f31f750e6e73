// Working memory that numbers distinct 64-bit keys in order of first occurrence.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "simd.h"

namespace embermesh {

// One thread's. A cell is eight bytes: half of a hash and a number, by which the key itself is
// found in the caller's list. Numbers in cells go on from set to set, so what a former set left is
// told by its number and starting anew costs nothing.
class UniqueSet {
 public:
  static constexpr std::size_t kBlock = 64;  // keys that number_block takes at most

  // Forgets all keys and makes room for `keys` of them. Throws std::bad_alloc.
  void begin(std::size_t keys) {
    // At most as many distinct keys as there are, mostly far fewer: full to 4/5 at worst.
    const std::size_t cells = std::bit_ceil(keys + keys / 4 + 2);
    base_ += size_;
    size_ = 0;
    is_mostly_new_ = true;
    if (cells_.size() < cells) {
      cells_.assign(cells, kFree);
      base_ = 1;
    } else if (base_ > std::numeric_limits<std::uint32_t>::max() - keys) {
      std::ranges::fill(cells_, kFree);  // else old numbers would look fresh
      base_ = 1;
    }
    mask_ = cells - 1;
  }

  // Asks for the cells where the search for these hashes begins: a loop of its own, so that many
  // are on their way at once. Each may wait for its page to be found, and a core looks only so far
  // ahead of what waits.
  void prefetch(std::span<const std::uint64_t> hashes) const noexcept {
    const std::uint64_t* const cells = cells_.data();
    const std::uint64_t mask = mask_;
    for (const std::uint64_t hash : hashes) prefetch_line<Cache::kFirst>(cells + (hash & mask));
  }

  // numbers[i] becomes the number of keys[i], whose hash is hashes[i]. A new key gets the number
  // size(), becomes the last of `distinct`, which holds the key of each number, and is shown to
  // visit_new(number, hash). At most kBlock keys.
  //
  // Whether a key is new cannot be foreseen, and a branch that goes the wrong way costs more than
  // the search. So first all keys are looked up without branches where they would be at best, and
  // then those not found there, of which nearly all are new, one by one.
  template <class VisitNew>
  [[gnu::always_inline]] void number_block(std::span<const std::uint64_t> keys,
                                           const std::uint64_t* hashes, std::int32_t* numbers,
                                           std::uint64_t* distinct,
                                           const VisitNew& visit_new) noexcept {
    std::array<std::uint32_t, kBlock> left;
    const std::size_t misses = list_misses(keys, hashes, numbers, distinct, left);
    std::uint64_t* const cells = cells_.data();  // copies, which writing keys cannot change
    const std::uint64_t mask = mask_;
    const std::uint32_t base = base_;
    const std::uint32_t known = size_;
    std::uint32_t size = known;
    for (std::size_t j = 0; j < misses; ++j) {
      const std::uint32_t i = left[j];
      for (std::uint64_t at = hashes[i] & mask;; at = (at + 1) & mask) {
        const std::uint64_t cell = cells[at];
        const std::uint32_t number = number_in(cell) - base;
        if (number >= size) {
          cells[at] = cell_of(hashes[i], base + size);
          distinct[size] = keys[i];
          visit_new(size, hashes[i]);
          numbers[i] = static_cast<std::int32_t>(size++);
          break;
        }
        if (tag_of(cell, hashes[i]) == 0 && distinct[number] == keys[i]) {
          numbers[i] = static_cast<std::int32_t>(number);
          break;
        }
      }
    }
    size_ = size;
    is_mostly_new_ = std::size_t{8} * (size - known) >= 7 * keys.size();
  }

  // numbers[i] becomes the number of keys[i], whose hash is hashes[i], or -1 if it has none. Any
  // number of threads may look at once.
  void find_block(std::span<const std::uint64_t> keys, const std::uint64_t* hashes,
                  std::int32_t* numbers, const std::uint64_t* distinct) const noexcept {
    if (size_ > 0) look_up(keys, hashes, numbers, distinct);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (size_ == 0 || numbers[i] < 0) numbers[i] = find(keys[i], hashes[i], distinct);
    }
  }

  [[nodiscard]] std::uint32_t size() const noexcept { return size_; }

 private:
  // The upper half of a cell is base_ + number of the key, less than base_ if the cell is free; the
  // lower half is the upper one of the key's hash, its tag.
  static constexpr std::uint64_t kFree = 0;
  [[nodiscard]] static constexpr std::uint64_t cell_of(std::uint64_t hash,
                                                       std::uint32_t number) noexcept {
    return std::uint64_t{number} << 32 | hash >> 32;
  }
  [[nodiscard]] static constexpr std::uint32_t number_in(std::uint64_t cell) noexcept {
    return static_cast<std::uint32_t>(cell >> 32);
  }
  // 0 if the cell's tag is that of the hash.
  [[nodiscard]] static constexpr std::uint32_t tag_of(std::uint64_t cell,
                                                      std::uint64_t hash) noexcept {
    return static_cast<std::uint32_t>(cell ^ (hash >> 32));
  }

  // Lists in `left` which keys are not in their first cell, and returns how many; the others get
  // their numbers. Doesn't look where the block before had hardly a key that was known.
  std::size_t list_misses(std::span<const std::uint64_t> keys, const std::uint64_t* hashes,
                          std::int32_t* numbers, const std::uint64_t* distinct,
                          std::array<std::uint32_t, kBlock>& left) const noexcept {
    std::size_t misses = 0;
    if (!is_mostly_new_) look_up(keys, hashes, numbers, distinct);
    for (std::uint32_t i = 0; i < keys.size(); ++i) {
      left[misses] = i;
      misses += is_mostly_new_ ? 1 : static_cast<std::uint32_t>(numbers[i]) >> 31;
    }
    return misses;
  }

  [[nodiscard]] std::int32_t find(std::uint64_t key, std::uint64_t hash,
                                  const std::uint64_t* distinct) const noexcept {
    for (std::uint64_t at = hash & mask_;; at = (at + 1) & mask_) {
      const std::uint64_t cell = cells_[at];
      const std::uint32_t number = number_in(cell) - base_;
      if (number >= size_) return -1;
      if (tag_of(cell, hash) == 0 && distinct[number] == key) {
        return static_cast<std::int32_t>(number);
      }
    }
  }

  // numbers[i] becomes the number of keys[i] if its first cell has it, else -1. For a set that is
  // not empty.
  void look_up(std::span<const std::uint64_t> keys, const std::uint64_t* hashes,
               std::int32_t* numbers, const std::uint64_t* distinct) const noexcept;

  std::vector<std::uint64_t> cells_;
  std::size_t mask_ = 0;
  std::uint32_t base_ = 1;
  std::uint32_t size_ = 0;
  bool is_mostly_new_ = true;  // nearly all keys of the last block were new
};

}  // namespace embermesh

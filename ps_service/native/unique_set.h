// Working memory that numbers distinct 64-bit keys in order of first occurrence.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "simd.h"

namespace embermesh {

// One thread's. A cell is eight bytes: half of a hash and a number, by which the key itself is
// found in the caller's list. Numbers in cells go on from set to set, so what a former set left is
// told by its number and starting anew costs nothing.
class UniqueSet {
 public:
  // Forgets all keys and makes room for `keys` of them. Throws std::bad_alloc.
  void begin(std::size_t keys) {
    // At most as many distinct keys as there are, mostly far fewer: full to 4/5 at worst.
    const std::size_t cells = std::bit_ceil(keys + keys / 4 + 2);
    base_ += size_;
    size_ = 0;
    if (cells_.size() < cells) {
      cells_.assign(cells, Cell{});
      base_ = 1;
    } else if (base_ > std::numeric_limits<std::uint32_t>::max() - keys) {
      std::ranges::fill(cells_, Cell{});  // else old numbers would look fresh
      base_ = 1;
    }
    mask_ = cells - 1;
  }

  // Asks for the cell where the search for this hash begins.
  void prefetch(std::uint64_t hash) const noexcept {
    prefetch_line<Cache::kFirst>(&cells_[hash & mask_]);
  }

  // The number of `key`; a new one gets the number size(), and becomes the last of `keys`, which
  // holds the key of each number.
  std::uint32_t number_of(std::uint64_t key, std::uint64_t hash, std::uint64_t* keys) noexcept {
    const auto tag = static_cast<std::uint32_t>(hash >> 32);
    for (std::size_t at = hash & mask_;; at = (at + 1) & mask_) {
      Cell& cell = cells_[at];
      const std::uint32_t number = cell.number - base_;
      if (number >= size_) {
        cell = Cell{tag, base_ + size_};
        keys[size_] = key;
        return size_++;
      }
      if (cell.tag == tag && keys[number] == key) return number;
    }
  }

  // The number of `key`, or size() if it has none. Any number of threads may look at once.
  [[nodiscard]] std::uint32_t find(std::uint64_t key, std::uint64_t hash,
                                   const std::uint64_t* keys) const noexcept {
    const auto tag = static_cast<std::uint32_t>(hash >> 32);
    for (std::size_t at = hash & mask_;; at = (at + 1) & mask_) {
      const Cell& cell = cells_[at];
      const std::uint32_t number = cell.number - base_;
      if (number >= size_) return size_;
      if (cell.tag == tag && keys[number] == key) return number;
    }
  }

  [[nodiscard]] std::uint32_t size() const noexcept { return size_; }

 private:
  struct Cell {
    std::uint32_t tag = 0;
    std::uint32_t number = 0;  // base_ + number of the key; less than base_: free
  };

  std::vector<Cell> cells_;
  std::size_t mask_ = 0;
  std::uint32_t base_ = 1;
  std::uint32_t size_ = 0;
};

}  // namespace embermesh

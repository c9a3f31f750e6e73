// Working memory that numbers distinct 64-bit keys in order of first occurrence.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "simd.h"

namespace embermesh {

// One thread's. Cells are marked by round, so starting a new set costs nothing.
class UniqueSet {
 public:
  // Forgets all keys and makes room for `keys` of them. Throws std::bad_alloc.
  void begin(std::size_t keys) {
    const std::size_t cells = std::bit_ceil(2 * keys + 2);
    if (cells_.size() < cells) cells_.assign(cells, Cell{});
    mask_ = cells - 1;
    size_ = 0;
    if (++round_ == 0) {  // the counter came round: old marks would look fresh
      std::ranges::fill(cells_, Cell{});
      round_ = 1;
    }
  }

  // Asks for the cell where the search for this hash begins.
  void prefetch(std::uint64_t hash) const noexcept { prefetch_line(&cells_[hash & mask_]); }

  // The number of `key`; a new key gets the number size().
  std::uint32_t number_of(std::uint64_t key, std::uint64_t hash) noexcept {
    for (std::size_t at = hash & mask_;; at = (at + 1) & mask_) {
      Cell& cell = cells_[at];
      if (cell.round != round_) {
        cell = Cell{key, size_, round_};
        return size_++;
      }
      if (cell.key == key) return cell.number;
    }
  }

  [[nodiscard]] std::uint32_t size() const noexcept { return size_; }

 private:
  struct Cell {
    std::uint64_t key;
    std::uint32_t number;
    std::uint32_t round;
  };

  std::vector<Cell> cells_;
  std::size_t mask_ = 0;
  std::uint32_t size_ = 0;
  std::uint32_t round_ = 0;
};

}  // namespace embermesh

// Rows of one width in slabs. A row is named by 32 bits and moves only when its arena is compacted.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "slab_pool.h"

namespace embermesh {

// Number of a row within its arena: its position in units of 16 bytes.
using RowNumber = std::uint32_t;
inline constexpr RowNumber kNoRow = std::numeric_limits<RowNumber>::max();

// The lowest free place is taken first, and slabs without a row at the end go back to the pool.
// Not thread-safe: its partition's lock guards it.
class RowArena {
 public:
  static constexpr std::size_t kUnitFloats = 4;
  static constexpr std::size_t kUnitBytes = kUnitFloats * sizeof(float);

  // Units for a row of `floats` floats: whole cache lines where they cost at most an eighth more,
  // so that a row of n lines is never spread over n + 1.
  [[nodiscard]] static std::uint32_t units_for(std::size_t floats) noexcept;

  // Rows of `units` units each. `pool` must outlive the arena and its slabs must hold a row.
  RowArena(SlabPool& pool, std::uint32_t units) noexcept;

  RowArena(RowArena&& other) noexcept { swap(other); }
  RowArena& operator=(RowArena&& other) noexcept {
    swap(other);  // `other` takes our slabs and gives them back
    return *this;
  }
  RowArena(const RowArena&) = delete;
  RowArena& operator=(const RowArena&) = delete;
  ~RowArena();

  // An uninitialised row. Throws std::bad_alloc, and then nothing has changed.
  [[nodiscard]] RowNumber allocate();

  // Gives a row's place back.
  void free(RowNumber number) noexcept;

  // Valid until the row is freed.
  [[nodiscard]] float* row(RowNumber number) const noexcept {
    const std::size_t within = number & (slab_units_ - 1);
    return reinterpret_cast<float*>(slabs_[number >> slab_shift_] + within * kUnitBytes);
  }

  // Finds many rows in turn: holds what that takes in registers. Good until the next allocate().
  class Reader {
   public:
    explicit Reader(const RowArena& arena) noexcept
        : slabs_(arena.slabs_.data()), shift_(arena.slab_shift_), mask_(arena.slab_units_ - 1) {}

    [[nodiscard]] float* row(RowNumber number) const noexcept {
      return reinterpret_cast<float*>(slabs_[number >> shift_] + (number & mask_) * kUnitBytes);
    }

   private:
    std::byte* const* slabs_;
    int shift_;
    std::size_t mask_;
  };

  // Less than half of the places are in use, in more slabs than the rows need.
  [[nodiscard]] bool is_sparse() const noexcept {
    return 2 * rows_ < slabs_.size() * slab_rows_ && slabs_.size() > needed_slabs();
  }
  // Moves the row to a lower slab, and `number` with it, if it lies beyond those that are needed.
  void pack(RowNumber& number) noexcept {
    if (number >= needed_slabs() << slab_shift_) move_down(number);
  }

  // Above the number of every row.
  [[nodiscard]] RowNumber row_bound() const noexcept {
    return static_cast<RowNumber>(slabs_.size() << slab_shift_);
  }
  [[nodiscard]] std::size_t rows() const noexcept { return rows_; }
  [[nodiscard]] std::size_t bytes() const noexcept;

 private:
  static constexpr std::size_t kWordBits = 64;

  void swap(RowArena& other) noexcept;
  void add_slab();
  void move_down(RowNumber& number) noexcept;
  [[nodiscard]] bool is_last_slab_empty() const noexcept;
  [[nodiscard]] std::size_t needed_slabs() const noexcept {
    return (rows_ + slab_rows_ - 1) / slab_rows_;
  }

  SlabPool* pool_ = nullptr;
  std::uint32_t units_ = 1;
  std::uint32_t slab_rows_ = 1;
  std::uint32_t slab_words_ = 1;  // words of used_ per slab
  std::size_t slab_units_ = 1;
  int slab_shift_ = 0;
  std::size_t rows_ = 0;
  std::size_t first_open_ = 0;  // no word of used_ before this has a free place
  std::vector<std::byte*> slabs_;
  std::vector<std::uint64_t> used_;  // a bit per place; those beyond a slab's rows are always set
};

}  // namespace embermesh

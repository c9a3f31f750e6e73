// Rows of one width in slabs. A row has a number and moves only when its arena is compacted.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "row_names.h"
#include "simd.h"
#include "slab_pool.h"

namespace embermesh {

// The lowest free place is taken first, and slabs without a row at the end go back to the pool.
// Not thread-safe: its partition's lock guards it.
class RowArena {
 public:
  static constexpr std::size_t kUnitFloats = 4;
  static constexpr std::size_t kUnitBytes = kUnitFloats * sizeof(float);

  // Units for a row of `floats` floats: whole cache lines where they cost at most an eighth more,
  // so that a row of n lines is never spread over n + 1.
  [[nodiscard]] static std::uint32_t units_for(std::size_t floats) noexcept;

  // Rows of `units` units each, with numbers below `bound`. `pool` must outlive the arena and its
  // slabs must hold a row.
  RowArena(SlabPool& pool, std::uint32_t units, RowNumber bound) noexcept;

  RowArena(RowArena&& other) noexcept { swap(other); }
  RowArena& operator=(RowArena&& other) noexcept {
    swap(other);  // `other` takes our slabs and gives them back
    return *this;
  }
  RowArena(const RowArena&) = delete;
  RowArena& operator=(const RowArena&) = delete;
  ~RowArena();

  // Whether all numbers are in use, most_rows() of them.
  [[nodiscard]] bool is_full() const noexcept { return rows_ == most_rows_; }
  [[nodiscard]] std::size_t most_rows() const noexcept { return most_rows_; }

  // An uninitialised row, of an arena that is not full. Throws std::bad_alloc, and then nothing has
  // changed.
  [[nodiscard]] RowNumber allocate();

  // Gives a row's place back.
  void free(RowNumber number) noexcept;

  // Valid until the row is freed.
  [[nodiscard]] float* row(RowNumber number) const noexcept {
    return reinterpret_cast<float*>(slabs_[number >> place_bits_] + place_of(number) * row_bytes_);
  }

  // Asks for the list of slabs, without which no row is found.
  void prefetch_slabs() const noexcept { prefetch_list(slabs_); }

  // Less than half of the places are in use, in more slabs than the rows need.
  [[nodiscard]] bool is_sparse() const noexcept {
    return 2 * rows_ < slabs_.size() * slab_rows_ && slabs_.size() > needed_slabs();
  }
  // Moves the row to a lower slab, and `number` with it, if it lies beyond those that are needed.
  void pack(RowNumber& number) noexcept {
    if (number >= needed_slabs() << place_bits_) move_down(number);
  }

  // Above the number of every row.
  [[nodiscard]] RowNumber row_bound() const noexcept {
    return static_cast<RowNumber>(slabs_.size() << place_bits_);
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

  [[nodiscard]] std::size_t place_of(RowNumber number) const noexcept {
    return number & place_mask_;
  }

  std::vector<std::byte*> slabs_;
  std::uint32_t place_bits_ = 0;  // of a number, for the place in the slab; above is the slab
  std::uint32_t place_mask_ = 0;
  std::uint32_t row_bytes_ = kUnitBytes;
  std::uint32_t slab_rows_ = 1;
  std::uint32_t slab_words_ = 1;  // words of used_ per slab, a power of two
  std::size_t rows_ = 0;
  std::size_t most_rows_ = 0;
  SlabPool* pool_ = nullptr;
  std::size_t first_open_ = 0;       // no word of used_ before this has a free place
  std::vector<std::uint64_t> used_;  // a bit per place; those beyond a slab's rows are always set
};

}  // namespace embermesh

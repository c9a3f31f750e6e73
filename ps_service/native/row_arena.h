// Rows of mixed widths, bump-allocated in slabs. A row is named by 32 bits and never moves.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <new>
#include <utility>
#include <vector>

#include "slab_pool.h"

namespace embermesh {

// Number of a row within its arena: its position in units of 16 bytes.
using RowNumber = std::uint32_t;
inline constexpr RowNumber kNoRow = std::numeric_limits<RowNumber>::max();

// Not thread-safe: its partition's lock guards it.
class RowArena {
 public:
  static constexpr std::size_t kUnitFloats = 4;
  static constexpr std::size_t kUnitBytes = kUnitFloats * sizeof(float);

  // Units that a row of `floats` floats takes.
  [[nodiscard]] static constexpr std::uint32_t units_for(std::size_t floats) noexcept {
    return static_cast<std::uint32_t>((floats + kUnitFloats - 1) / kUnitFloats);
  }

  // `pool` must outlive the arena and its slabs must hold the widest row.
  explicit RowArena(SlabPool& pool) noexcept
      : pool_(&pool),
        slab_units_(pool.slab_bytes() / kUnitBytes),
        slab_shift_(std::countr_zero(slab_units_)) {}

  RowArena(RowArena&& other) noexcept = default;  // leaves `other` without slabs
  RowArena& operator=(RowArena&& other) noexcept {
    std::swap(pool_, other.pool_);  // `other` takes our slabs and gives them back
    std::swap(slab_units_, other.slab_units_);
    std::swap(slab_shift_, other.slab_shift_);
    std::swap(used_units_, other.used_units_);
    std::swap(slabs_, other.slabs_);
    return *this;
  }
  RowArena(const RowArena&) = delete;
  RowArena& operator=(const RowArena&) = delete;
  ~RowArena() { pool_->release(slabs_); }

  // An uninitialised row. Throws std::bad_alloc, and then nothing has changed.
  [[nodiscard]] RowNumber allocate(std::uint32_t units) {
    const std::size_t room = (slabs_.size() << slab_shift_) - used_units_;
    std::size_t start = used_units_;
    if (units > room) {
      start = slabs_.size() << slab_shift_;  // rows do not straddle slabs
      if (start + slab_units_ > kNoRow) throw std::bad_alloc();
      slabs_.push_back(nullptr);  // room first, so that a slab is never lost
      slabs_.back() = acquire_or_pop();
    }
    used_units_ = start + units;
    return static_cast<RowNumber>(start);
  }

  // Valid for as long as the arena.
  [[nodiscard]] float* row(RowNumber number) const noexcept {
    const std::size_t within = number & (slab_units_ - 1);
    return reinterpret_cast<float*>(slabs_[number >> slab_shift_] + within * kUnitBytes);
  }

  [[nodiscard]] std::size_t bytes() const noexcept { return slabs_.size() * pool_->slab_bytes(); }

 private:
  [[nodiscard]] std::byte* acquire_or_pop() {
    try {
      return pool_->acquire();
    } catch (const std::bad_alloc&) {
      slabs_.pop_back();
      throw;
    }
  }

  SlabPool* pool_;
  std::size_t slab_units_;
  int slab_shift_;
  std::size_t used_units_ = 0;
  std::vector<std::byte*> slabs_;
};

}  // namespace embermesh

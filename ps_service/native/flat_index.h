// Open-addressing index (table, key) -> row number, with linear probing in 16-byte slots.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "row_arena.h"

namespace embermesh {

// Every 64-bit key is legal: an empty slot is marked by its row number, not by a key.
// Not thread-safe: its partition's lock guards it.
class FlatIndex {
 public:
  // Row of (table, key), or kNoRow. `hash` is the low half of row_hash.
  [[nodiscard]] RowNumber find(std::uint32_t table, std::uint64_t key,
                               std::uint32_t hash) const noexcept {
    if (size_ == 0) return kNoRow;
    for (std::size_t at = hash & mask_;; at = (at + 1) & mask_) {
      const Slot& slot = slots_[at];
      if (slot.row == kNoRow) return kNoRow;
      if (slot.key == key && slot.table == table) return slot.row;
    }
  }

  void prefetch(std::uint32_t hash) const noexcept {
    if (size_ != 0) __builtin_prefetch(&slots_[hash & mask_]);
  }

  // Makes room for one more entry; rehash(table, key) gives the low half of row_hash.
  // Throws std::bad_alloc, and then nothing has changed.
  template <class Rehash>
  void reserve_one(const Rehash& rehash) {
    if ((size_ + 1) * kFullDenominator <= capacity() * kFullNumerator) return;
    grow(capacity() == 0 ? kFirstCapacity : 2 * capacity(), rehash);
  }

  // Adds (table, key), which must be absent, after reserve_one.
  void insert(std::uint32_t table, std::uint64_t key, std::uint32_t hash, RowNumber row) noexcept {
    place(slots_.get(), mask_, Slot{key, row, table}, hash);
    ++size_;
  }

  // Calls visit(table, key, row) for every entry, in no particular order.
  template <class Visit>
  void for_each(const Visit& visit) const {
    for (std::size_t at = 0; at < capacity(); ++at) {
      const Slot& slot = slots_[at];
      if (slot.row != kNoRow) visit(slot.table, slot.key, slot.row);
    }
  }

  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::size_t capacity() const noexcept { return slots_ ? mask_ + 1 : 0; }
  [[nodiscard]] std::size_t bytes() const noexcept { return capacity() * sizeof(Slot); }

 private:
  struct Slot {
    std::uint64_t key;
    RowNumber row;
    std::uint32_t table;
  };
  static_assert(sizeof(Slot) == 16, "four slots to a cache line");

  static constexpr std::size_t kFirstCapacity = 16;
  static constexpr std::size_t kFullNumerator = 3;  // at most 3/4 full: ~2.5 slots per hit
  static constexpr std::size_t kFullDenominator = 4;

  static void place(Slot* slots, std::size_t mask, const Slot& slot, std::uint32_t hash) noexcept {
    std::size_t at = hash & mask;
    while (slots[at].row != kNoRow) at = (at + 1) & mask;
    slots[at] = slot;
  }

  template <class Rehash>
  void grow(std::size_t new_capacity, const Rehash& rehash) {
    auto grown = std::make_unique_for_overwrite<Slot[]>(new_capacity);
    for (std::size_t at = 0; at < new_capacity; ++at) grown[at].row = kNoRow;
    for_each([&](std::uint32_t table, std::uint64_t key, RowNumber row) {
      place(grown.get(), new_capacity - 1, Slot{key, row, table}, rehash(table, key));
    });
    slots_ = std::move(grown);
    mask_ = new_capacity - 1;
  }

  std::unique_ptr<Slot[]> slots_;
  std::size_t mask_ = 0;  // capacity - 1 once there are slots
  std::size_t size_ = 0;
};

}  // namespace embermesh

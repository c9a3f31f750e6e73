// Open-addressing index of one table in one partition: hash -> row, four slots to a cache line.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "row_arena.h"
#include "simd.h"
#include "slab_pool.h"

namespace embermesh {

// The hash stands for the key: within a table each is a function of the other (hash.h).
struct Slot {
  std::uint64_t hash;
  RowNumber row;
  std::uint32_t meta;  // belongs to whoever keeps account of a row's use; 0 at first
};

// Linear probing by buckets of one cache line. A bucket's entries come before its empty slots, and
// no entry lies behind a bucket that has an empty slot on the way from its home. So every 64-bit
// hash is legal (an empty slot is told by its row), a search ends in the first bucket that is not
// full, and erasing leaves no tombstone.
//
// A bucket's home rises with the low half of the hash, so growing copies the entries in order. Up
// to a page the buckets lie in one block that fits; beyond, in pages from the pool.
//
// Not thread-safe: its partition's lock guards it.
class FlatIndex {
 public:
  // `pool` has slabs of kPageBytes and must outlive the index.
  explicit FlatIndex(SlabPool& pool) noexcept : pool_(&pool) {}
  FlatIndex(FlatIndex&& other) noexcept { swap(other); }
  FlatIndex& operator=(FlatIndex&& other) noexcept {
    swap(other);
    return *this;
  }
  FlatIndex(const FlatIndex&) = delete;
  FlatIndex& operator=(const FlatIndex&) = delete;
  ~FlatIndex() { free_pages(); }

  // The slot of `hash`, or null; valid until the next insert, erase or shrink.
  [[nodiscard]] Slot* find(std::uint64_t hash) const noexcept {
    if (buckets_ == 0) return nullptr;
    for (std::size_t b = home(hash);; b = after(b)) {
      Bucket& bucket = at(b);
      if (Slot* const slot = bucket.find(hash)) return slot;
      if (!bucket.is_full()) return nullptr;
    }
  }

  // The same if the entry is in its home, as most are; null says nothing. Not of an empty index.
  [[nodiscard]] Slot* find_at_home(std::uint64_t hash) const noexcept {
    return at(home(hash)).find(hash);
  }

  // Asks for the line where find begins, or for those where it goes on. Not of an empty index.
  void prefetch_home(std::uint64_t hash) const noexcept { prefetch_line(&at(home(hash))); }
  void prefetch_next(std::uint64_t hash) const noexcept {
    const std::size_t next = after(home(hash));
    prefetch_line(&at(next));
    prefetch_line(&at(after(next)));
  }

  // Makes room for one more entry. Throws std::bad_alloc, and then nothing has changed.
  void reserve_one() {
    if ((size_ + 1) * kFullDenominator > capacity() * kFullNumerator) grow();
  }

  // Adds `hash`, which must be absent, after reserve_one.
  void insert(std::uint64_t hash, RowNumber row) noexcept {
    place(Slot{hash, row, 0});
    ++size_;
  }

  // Removes the entry of `slot`, which came from find.
  void erase(Slot* slot) noexcept;

  // Less than a quarter full, and more than a bucket.
  [[nodiscard]] bool is_sparse() const noexcept { return buckets_ > 1 && size_ * 4 < capacity(); }

  // Makes a sparse index smaller. Without memory for that it stays as it is.
  void shrink() noexcept;

  // Calls visit(Slot&) for the entries of the buckets [first, first + count).
  template <class Visit>
  void for_each(std::size_t first, std::size_t count, const Visit& visit) const {
    for (std::size_t b = first; b < first + count && b < buckets_; ++b) {
      for (Slot& slot : at(b).slots) {
        if (slot.row != kNoRow) visit(slot);
      }
    }
  }
  // Calls visit(Slot&) for every entry, in no particular order.
  template <class Visit>
  void for_each(const Visit& visit) const {
    for_each(0, buckets_, visit);
  }

  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::size_t buckets() const noexcept { return buckets_; }
  [[nodiscard]] std::size_t capacity() const noexcept { return buckets_ * kBucketSlots; }
  [[nodiscard]] std::size_t bytes() const noexcept {
    return buckets_ * sizeof(Bucket) + pages_.size() * sizeof(Bucket*);
  }

  // Adds to lengths[n] the entries that a search finds in its n-th further bucket; the last place
  // is for all that lie behind.
  void count_probes(std::span<std::uint64_t> lengths) const noexcept;

  static constexpr std::size_t kPageBytes = std::size_t{8} << 10;
  static constexpr std::size_t kBucketSlots = 4;

 private:
  static constexpr std::size_t kFullNumerator = 13;  // at most 13/16 full
  static constexpr std::size_t kFullDenominator = 16;

  struct alignas(64) Bucket {
    Slot slots[kBucketSlots];

    // Without a branch per slot, because which one it is cannot be predicted. Of two slots the
    // first is the entry: an empty one may hold the same bits, but behind it.
    [[nodiscard]] Slot* find(std::uint64_t hash) noexcept {
      unsigned same = 0;
      for (unsigned i = 0; i < kBucketSlots; ++i) {
        same |= static_cast<unsigned>(slots[i].hash == hash) << i;
      }
      if (same == 0) return nullptr;
      Slot* const slot = slots + std::countr_zero(same);
      return slot->row != kNoRow ? slot : nullptr;
    }
    [[nodiscard]] bool is_full() const noexcept { return slots[kBucketSlots - 1].row != kNoRow; }
    // Number of entries.
    [[nodiscard]] std::size_t used() const noexcept {
      std::size_t n = 0;
      while (n < kBucketSlots && slots[n].row != kNoRow) ++n;
      return n;
    }
  };
  static_assert(sizeof(Bucket) == 64, "a cache line");
  static constexpr std::size_t kPageBuckets = kPageBytes / sizeof(Bucket);
  static constexpr int kPageShift = std::countr_zero(kPageBuckets);
  static constexpr Slot kEmpty{0, kNoRow, 0};

  [[nodiscard]] std::size_t home(std::uint64_t hash) const noexcept {
    return (hash & 0xFFFFFFFFU) * buckets_ >> 32;
  }
  [[nodiscard]] std::size_t after(std::size_t b) const noexcept {
    return b + 1 == buckets_ ? 0 : b + 1;
  }
  // How far b lies behind the home of `hash`, in the direction of probing.
  [[nodiscard]] std::size_t distance(std::uint64_t hash, std::size_t b) const noexcept {
    const std::size_t from = home(hash);
    return b >= from ? b - from : b + buckets_ - from;
  }
  [[nodiscard]] Bucket& at(std::size_t b) const noexcept {
    return pages_[b >> kPageShift][b & (kPageBuckets - 1)];
  }
  void swap(FlatIndex& other) noexcept {
    std::swap(buckets_, other.buckets_);
    std::swap(pages_, other.pages_);
    std::swap(size_, other.size_);
    std::swap(pool_, other.pool_);
  }

  void place(const Slot& slot) noexcept {
    std::size_t b = home(slot.hash);
    while (at(b).is_full()) b = after(b);
    Bucket& bucket = at(b);
    bucket.slots[bucket.used()] = slot;
  }

  void grow();
  void rebuild(std::size_t buckets);
  void make_pages(std::size_t buckets);
  void free_pages() noexcept;

  std::size_t buckets_ = 0;  // below 2^32
  std::vector<Bucket*> pages_;
  std::size_t size_ = 0;
  SlabPool* pool_ = nullptr;
};

}  // namespace embermesh

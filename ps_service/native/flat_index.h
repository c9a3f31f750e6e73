// Open-addressing index of one partition: table and hash -> row, a bucket to a cache line.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "row_names.h"
#include "simd.h"
#include "slab_pool.h"

namespace embermesh {

// A cache line of the index: four entries with metadata, or five without.
//
//   with:     4 hashes, 4 names of rows, 4 metadata
//   without:  4 hashes, the fifth hash (8 bytes), 5 names of rows, 4 bytes unused
struct alignas(64) Bucket {
  std::uint64_t hashes[4];
  std::uint32_t tail[8];

  [[nodiscard]] std::uint64_t fifth_hash() const noexcept {
    std::uint64_t hash;
    std::memcpy(&hash, tail, sizeof(hash));
    return hash;
  }

  // Bit 2 * i: whether hash i of the five is `hash`. Without a branch per hash, because which one
  // it is cannot be predicted.
  [[nodiscard]] unsigned equal_hashes(std::uint64_t hash) const noexcept {
#ifdef __SSE2__
    // Halves of 32 bits are compared and narrowed to a bit each; a hash is equal if both are.
    const auto* const line = reinterpret_cast<const __m128i*>(this);
    const __m128i wanted = _mm_set1_epi64x(static_cast<long long>(hash));
    const __m128i first =
        _mm_packs_epi32(_mm_cmpeq_epi32(line[0], wanted), _mm_cmpeq_epi32(line[1], wanted));
    const __m128i fifth = _mm_packs_epi32(_mm_cmpeq_epi32(line[2], wanted), _mm_setzero_si128());
    const auto halves = static_cast<unsigned>(_mm_movemask_epi8(_mm_packs_epi16(first, fifth)));
    return halves & halves >> 1 & 0x155U;
#else
    unsigned equal = 0;
    for (unsigned i = 0; i < 4; ++i) equal |= static_cast<unsigned>(hashes[i] == hash) << 2 * i;
    return equal | static_cast<unsigned>(fifth_hash() == hash) << 8;
#endif
  }
};
static_assert(sizeof(Bucket) == 64, "a cache line");

// How the entries of a bucket lie.
struct Layout {
  unsigned slots;       // 4 or 5
  unsigned first_name;  // place of their rows' names in Bucket::tail
  RowNames names;
};

// An entry of an index, or none. The hash stands for the key: within a table each is a function of
// the other (hash.h). Entries of two tables may have equal hashes.
//
// Of two words, so that calls take it in registers: a larger one is written to the stack in pieces
// and read back whole, for which a core waits a dozen cycles.
class Slot {
 public:
  Slot() = default;
  Slot(Bucket* bucket, unsigned place, const Layout& layout) noexcept
      : bucket_(bucket),
        place_(place),
        first_name_(static_cast<std::uint16_t>(layout.first_name)),
        row_bits_(layout.names.row_bits()) {}

  // Whether there is an entry.
  [[nodiscard]] explicit operator bool() const noexcept { return bucket_ != nullptr; }
  // Of a slot from find_or_next: whether it waits for its entry.
  [[nodiscard]] bool is_empty() const noexcept { return name() == kNoRow; }

  [[nodiscard]] std::uint64_t hash() const noexcept {
    return place_ < 4 ? bucket_->hashes[place_] : bucket_->fifth_hash();
  }
  [[nodiscard]] std::uint32_t table() const noexcept { return names().table(name()); }
  [[nodiscard]] RowNumber row() const noexcept { return names().row(name()); }
  // After the row was given another number.
  void set_row(RowNumber row) const noexcept { name() = names().name(table(), row); }
  // Belongs to whoever keeps account of a row's use; 0 at first. Only of an index that keeps it.
  [[nodiscard]] std::uint32_t& meta() const noexcept { return bucket_->tail[4 + place_]; }

 private:
  friend class FlatIndex;

  [[nodiscard]] RowNames names() const noexcept { return RowNames(row_bits_); }
  // kNoRow: empty.
  [[nodiscard]] std::uint32_t& name() const noexcept { return bucket_->tail[first_name_ + place_]; }

  Bucket* bucket_ = nullptr;
  std::uint32_t place_ = 0;
  std::uint16_t first_name_ = 0;
  RowNames::RowBits row_bits_{};
};
static_assert(sizeof(Slot) == 16);

// Linear probing by buckets of one cache line. A bucket's entries come before its empty slots, and
// no entry lies behind a bucket that has an empty slot on the way from its home. So every 64-bit
// hash is legal (an empty slot is told by its name), a search ends in the first bucket that is not
// full, and erasing leaves no tombstone.
//
// A bucket's home rises with the low half of the hash, so growing copies the entries in order. Up
// to a page the buckets lie in one block that fits; beyond, in pages from the pool.
//
// Not thread-safe: its partition's lock guards it.
class FlatIndex {
 public:
  // `pool` has slabs of kPageBytes and must outlive the index. `keeps_meta`: its slots have
  // metadata, and there is one fewer to a bucket.
  FlatIndex(SlabPool& pool, RowNames names, bool keeps_meta) noexcept
      : layout_(keeps_meta ? Layout{4, 0, names} : Layout{5, 2, names}), pool_(&pool) {}
  FlatIndex(FlatIndex&& other) noexcept { swap(other); }
  FlatIndex& operator=(FlatIndex&& other) noexcept {
    swap(other);
    return *this;
  }
  FlatIndex(const FlatIndex&) = delete;
  FlatIndex& operator=(const FlatIndex&) = delete;
  ~FlatIndex() { free_pages(); }

  // The slot of the table's `hash`, or none; valid until the next insert, erase or shrink.
  [[nodiscard]] Slot find(std::uint32_t table, std::uint64_t hash) const noexcept {
    if (buckets_ == 0) return {};
    for (std::size_t b = home(hash, buckets_);; b = after(b)) {
      Bucket& bucket = at(b);
      if (const Slot slot = find_in(bucket, table, hash, layout_)) return slot;
      if (!is_full(bucket)) return {};
    }
  }

  // Looks many keys up where most are: in their homes. Holds what that takes in registers; good
  // until the next insert, erase or shrink.
  class Reader {
   public:
    explicit Reader(const FlatIndex& index) noexcept
        : buckets_(index.buckets_),
          pages_(index.buckets_ > 0 ? index.pages_.data() : &kNoPage),
          layout_(index.layout_) {}

    // The slot of the table's `hash` if it is in its home; none says nothing.
    [[nodiscard]] Slot find(std::uint32_t table, std::uint64_t hash) const noexcept {
      return find_in(home_of(hash), table, hash, layout_);
    }
    // Asks for the line where find looks.
    void prefetch(std::uint64_t hash) const noexcept { prefetch_line(&home_of(hash)); }

   private:
    [[nodiscard]] Bucket& home_of(std::uint64_t hash) const noexcept {
      return bucket_at(pages_, home(hash, buckets_));
    }

    std::size_t buckets_;
    Bucket* const* pages_;
    Layout layout_;
  };

  // Asks for the list of pages, without which no bucket is found.
  void prefetch_pages() const noexcept { prefetch_list(pages_); }

  // Asks for the line behind the home of `hash`, where find goes on.
  void prefetch_next(std::uint64_t hash) const noexcept {
    if (buckets_ > 0) prefetch_line(&at(after(home(hash, buckets_))));
  }

  // Makes room for one more entry. Throws std::bad_alloc, and then nothing has changed.
  void reserve_one() {
    if ((size_ + 1) * 4 > buckets_ * kFullQuarters) grow();
  }

  // The slot of the table's `hash`, or the empty one where fill() may put it. After reserve_one, so
  // that there is one; valid as that of find is.
  [[nodiscard]] Slot find_or_next(std::uint32_t table, std::uint64_t hash) const noexcept {
    for (std::size_t b = home(hash, buckets_);; b = after(b)) {
      Bucket& bucket = at(b);
      if (const Slot slot = find_in(bucket, table, hash, layout_)) return slot;
      if (!is_full(bucket)) return slot_of(bucket, used(bucket));
    }
  }

  // Makes the empty slot that find_or_next gave an entry. `row` is below the names' bound.
  void fill(Slot next, std::uint32_t table, std::uint64_t hash, RowNumber row) noexcept {
    set(next, hash, layout_.names.name(table, row), 0);
    ++size_;
  }

  // Removes the entry of `slot`, which came from find.
  void erase(Slot slot) noexcept;

  // On average less than an entry to a bucket, and more than a bucket.
  [[nodiscard]] bool is_sparse() const noexcept { return buckets_ > 1 && size_ < buckets_; }

  // Makes a sparse index smaller. Without memory for that it stays as it is.
  void shrink() noexcept;

  // Calls visit(slot) for the entries of the buckets [first, first + count).
  template <class Visit>
  void for_each(std::size_t first, std::size_t count, const Visit& visit) const {
    for (std::size_t b = first; b < first + count && b < buckets_; ++b) {
      Bucket& bucket = at(b);
      for (unsigned i = 0; i < layout_.slots && bucket.tail[layout_.first_name + i] != kNoRow;
           ++i) {
        visit(slot_of(bucket, i));
      }
    }
  }
  // Calls visit(slot) for every entry, in no particular order.
  template <class Visit>
  void for_each(const Visit& visit) const {
    for_each(0, buckets_, visit);
  }

  // How many of the first buckets may have entries whose home is among the last.
  [[nodiscard]] std::size_t wrapped() const noexcept;

  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::size_t buckets() const noexcept { return buckets_; }
  [[nodiscard]] std::size_t capacity() const noexcept { return buckets_ * layout_.slots; }
  [[nodiscard]] std::size_t bytes() const noexcept {
    return buckets_ * sizeof(Bucket) + pages_.size() * sizeof(Bucket*);
  }

  // Adds to lengths[n] the entries that a search finds in its n-th further bucket; the last place
  // is for all that lie behind.
  void count_probes(std::span<std::uint64_t> lengths) const noexcept;

  static constexpr std::size_t kPageBytes = std::size_t{8} << 10;

 private:
  // At most 3 1/4 entries to a bucket: of four slots then one key in five is not at home, of five
  // one in fifteen.
  static constexpr std::size_t kFullQuarters = 13;

  static constexpr std::size_t kPageBuckets = kPageBytes / sizeof(Bucket);
  static constexpr int kPageShift = std::countr_zero(kPageBuckets);
  // Of an index without buckets, so that looking there takes no branch.
  static inline Bucket no_bucket_{{},
                                  {kNoRow, kNoRow, kNoRow, kNoRow, kNoRow, kNoRow, kNoRow, kNoRow}};
  static constexpr Bucket* kNoPage = &no_bucket_;

  [[nodiscard]] Slot slot_of(Bucket& bucket, unsigned place) const noexcept {
    return {&bucket, place, layout_};
  }
  // The loop goes on only where another table has the same hash, or an empty slot the same bits.
  [[nodiscard]] static Slot find_in(Bucket& bucket, std::uint32_t table, std::uint64_t hash,
                                    const Layout& layout) noexcept {
    constexpr unsigned kFour = 0x55;  // in buckets of four the fifth hash is none
    unsigned same = bucket.equal_hashes(hash) & (layout.slots == 5 ? ~0U : kFour);
    for (; same != 0; same &= same - 1) {
      const auto place = static_cast<unsigned>(std::countr_zero(same)) / 2;
      const std::uint32_t name = bucket.tail[layout.first_name + place];
      if (name - layout.names.first(table) < layout.names.bound()) return {&bucket, place, layout};
    }
    return {};
  }
  [[nodiscard]] bool is_full(const Bucket& bucket) const noexcept {
    return bucket.tail[layout_.first_name + layout_.slots - 1] != kNoRow;
  }
  // Number of entries; they come first. Without branches: how many there are can't be predicted.
  [[nodiscard]] unsigned used(const Bucket& bucket) const noexcept {
    unsigned n = 0;
    for (unsigned i = 0; i < 4; ++i) n += bucket.tail[layout_.first_name + i] != kNoRow ? 1U : 0U;
    return n + (layout_.slots == 5 && bucket.tail[layout_.first_name + 4] != kNoRow ? 1U : 0U);
  }
  [[nodiscard]] std::uint32_t meta_of(Slot slot) const noexcept {
    return keeps_meta() ? slot.meta() : 0;
  }
  [[nodiscard]] bool keeps_meta() const noexcept { return layout_.slots == 4; }
  void set(Slot slot, std::uint64_t hash, std::uint32_t name, std::uint32_t meta) const noexcept;

  [[nodiscard]] static std::size_t home(std::uint64_t hash, std::size_t buckets) noexcept {
    return (hash & 0xFFFFFFFFU) * buckets >> 32;
  }
  [[nodiscard]] static Bucket& bucket_at(Bucket* const* pages, std::size_t b) noexcept {
    return pages[b >> kPageShift][b & (kPageBuckets - 1)];
  }
  [[nodiscard]] std::size_t after(std::size_t b) const noexcept {
    return b + 1 == buckets_ ? 0 : b + 1;
  }
  // How far b lies behind the home of `hash`, in the direction of probing.
  [[nodiscard]] std::size_t distance(std::uint64_t hash, std::size_t b) const noexcept {
    const std::size_t from = home(hash, buckets_);
    return b >= from ? b - from : b + buckets_ - from;
  }
  [[nodiscard]] Bucket& at(std::size_t b) const noexcept { return bucket_at(pages_.data(), b); }
  void swap(FlatIndex& other) noexcept {
    std::swap(buckets_, other.buckets_);
    std::swap(pages_, other.pages_);
    std::swap(size_, other.size_);
    std::swap(layout_, other.layout_);
    std::swap(pool_, other.pool_);
  }

  void place(std::uint64_t hash, std::uint32_t name, std::uint32_t meta) noexcept {
    for (std::size_t b = home(hash, buckets_);; b = after(b)) {
      Bucket& bucket = at(b);
      const unsigned place = used(bucket);
      if (place < layout_.slots) return set(slot_of(bucket, place), hash, name, meta);
    }
  }

  void grow();
  void rebuild(std::size_t buckets);
  void make_pages(std::size_t buckets);
  void free_pages() noexcept;

  std::size_t buckets_ = 0;  // below 2^32
  std::vector<Bucket*> pages_;
  std::size_t size_ = 0;
  Layout layout_{4, 0, RowNames(1)};
  SlabPool* pool_ = nullptr;
};

}  // namespace embermesh

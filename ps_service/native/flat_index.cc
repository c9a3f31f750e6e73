#include "flat_index.h"

#include <algorithm>
#include <new>

namespace embermesh {

void FlatIndex::set(Slot slot, std::uint64_t hash, std::uint32_t name,
                    std::uint32_t meta) const noexcept {
  if (slot.place_ < 4) {
    slot.bucket_->hashes[slot.place_] = hash;
  } else {
    std::memcpy(slot.bucket_->tail, &hash, sizeof(hash));
  }
  slot.name() = name;
  if (keeps_meta()) slot.meta() = meta;
}

// The hole is filled with the last entry of its bucket. If the bucket was full, entries that had
// to pass it may lie behind: one that may live here closes the hole and leaves one where it was.
void FlatIndex::erase(Slot slot) noexcept {
  const auto move = [this](Slot to, Slot from) {
    if (to.place_ != from.place_ || to.bucket_ != from.bucket_) {
      set(to, from.hash(), from.name(), meta_of(from));
    }
    set(from, 0, kNoRow, 0);
  };
  std::size_t b = home(slot.hash(), buckets_);
  while (slot.bucket_ != &at(b)) b = after(b);
  bool was_full = is_full(at(b));
  move(slot, slot_of(at(b), used(at(b)) - 1));
  --size_;
  for (std::size_t next = after(b); was_full; next = after(next)) {
    Bucket& bucket = at(next);
    was_full = is_full(bucket);
    const unsigned end = used(bucket);
    const std::size_t gap = next >= b ? next - b : next + buckets_ - b;
    unsigned moved = 0;
    while (moved < end && distance(slot_of(bucket, moved).hash(), next) < gap) ++moved;
    if (moved == end) continue;  // and the hole stays for an entry further on
    move(slot_of(at(b), layout_.slots - 1), slot_of(bucket, moved));
    if (moved != end - 1) move(slot_of(bucket, moved), slot_of(bucket, end - 1));
    b = next;
  }
}

void FlatIndex::grow() {
  // By an eighth: 2.9 to 3 1/4 entries to a bucket, so 20 to 22 bytes per row.
  rebuild(std::max(buckets_ + buckets_ / 8, buckets_ + 1));
}

void FlatIndex::shrink() noexcept {
  if (!is_sparse()) return;
  try {
    rebuild(size_ * 4 / kFullQuarters * 9 / 8 + 1);
  } catch (const std::bad_alloc&) {
    return;  // then not today: the index is as it was
  }
}

void FlatIndex::rebuild(std::size_t buckets) {
  FlatIndex rebuilt(*pool_, layout_.names, keeps_meta());
  rebuilt.make_pages(buckets);
  for_each([&](Slot slot) { rebuilt.place(slot.hash(), slot.name(), meta_of(slot)); });
  rebuilt.size_ = size_;
  swap(rebuilt);
}

void FlatIndex::make_pages(std::size_t buckets) {
  const std::size_t pages = (buckets + kPageBuckets - 1) >> kPageShift;
  pages_.reserve(pages);
  if (pages == 1) {
    pages_.push_back(new Bucket[buckets]);
    buckets_ = buckets;
  } else {
    buckets_ = pages * kPageBuckets;
    while (pages_.size() < pages) pages_.push_back(reinterpret_cast<Bucket*>(pool_->acquire()));
  }
  for (std::size_t b = 0; b < buckets_; ++b) {
    for (unsigned i = 0; i < layout_.slots; ++i) set(slot_of(at(b), i), 0, kNoRow, 0);
  }
}

void FlatIndex::free_pages() noexcept {
  if (buckets_ > kPageBuckets) {
    for (Bucket* const page : pages_) {
      auto* const slab = reinterpret_cast<std::byte*>(page);
      pool_->release({&slab, 1});
    }
  } else if (!pages_.empty()) {
    delete[] pages_.front();
  }
}

std::size_t FlatIndex::wrapped() const noexcept {
  if (buckets_ == 0 || !is_full(at(buckets_ - 1))) return 0;
  std::size_t b = 0;
  while (b + 1 < buckets_ && is_full(at(b))) ++b;
  return b + 1;
}

void FlatIndex::count_probes(std::span<std::uint64_t> lengths) const noexcept {
  for (std::size_t b = 0; b < buckets_; ++b) {
    for_each(b, 1,
             [&](Slot slot) { ++lengths[std::min(distance(slot.hash(), b), lengths.size() - 1)]; });
  }
}

}  // namespace embermesh

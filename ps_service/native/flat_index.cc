#include "flat_index.h"

#include <algorithm>
#include <new>

namespace embermesh {

// The hole is filled with the last entry of its bucket. If the bucket was full, entries that had
// to pass it may lie behind: one that may live here closes the hole and leaves one where it was.
void FlatIndex::erase(Slot* slot) noexcept {
  std::size_t b = home(slot->hash);
  while (slot < at(b).slots || slot >= at(b).slots + kBucketSlots) b = after(b);
  bool was_full = at(b).is_full();
  Slot* last = &at(b).slots[at(b).used() - 1];
  *slot = *last;
  *last = kEmpty;
  --size_;
  for (std::size_t next = after(b); was_full; next = after(next)) {
    Bucket& bucket = at(next);
    was_full = bucket.is_full();
    const std::size_t used = bucket.used();
    const std::size_t gap = next >= b ? next - b : next + buckets_ - b;
    const auto passed_hole = [&](const Slot& s) { return distance(s.hash, next) >= gap; };
    Slot* const end = bucket.slots + used;
    Slot* const moved = std::find_if(bucket.slots, end, passed_hole);
    if (moved == end) continue;  // and the hole stays for an entry further on
    at(b).slots[kBucketSlots - 1] = *moved;
    *moved = end[-1];
    end[-1] = kEmpty;
    b = next;
  }
}

void FlatIndex::grow() {
  // By an eighth: full between 0.72 and 0.81, so 20 to 22 bytes per row.
  rebuild(std::max(buckets_ + buckets_ / 8, buckets_ + 1));
}

void FlatIndex::shrink() noexcept {
  if (!is_sparse()) return;
  try {
    rebuild(size_ * kFullDenominator / (kFullNumerator * kBucketSlots) * 9 / 8 + 1);
  } catch (const std::bad_alloc&) {
    return;  // then not today: the index is as it was
  }
}

void FlatIndex::rebuild(std::size_t buckets) {
  FlatIndex rebuilt(*pool_);
  rebuilt.make_pages(buckets);
  for_each([&](const Slot& slot) { rebuilt.place(slot); });
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
  for (std::size_t b = 0; b < buckets_; ++b) std::ranges::fill(at(b).slots, kEmpty);
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

void FlatIndex::count_probes(std::span<std::uint64_t> lengths) const noexcept {
  for (std::size_t b = 0; b < buckets_; ++b) {
    for_each(b, 1, [&](const Slot& slot) {
      ++lengths[std::min(distance(slot.hash, b), lengths.size() - 1)];
    });
  }
}

}  // namespace embermesh

#include "slab_pool.h"

#include <algorithm>
#include <cstdlib>
#include <new>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace embermesh {

SlabPool::SlabPool(std::size_t slab_bytes) : slab_bytes_(slab_bytes) {}

void SlabPool::Free::operator()(std::byte* chunk) const noexcept { std::free(chunk); }

std::byte* SlabPool::acquire() {
  const std::scoped_lock lock(mutex_);
  if (free_.empty()) {
    const std::size_t bytes = std::max(kChunkBytes, slab_bytes_);
    // Room first, so that nothing below can fail after the chunk exists; `free_` can then hold
    // every slab ever made, which is what makes release() noexcept.
    chunks_.reserve(chunks_.size() + 1);
    free_.reserve((chunks_.size() + 1) * (bytes / slab_bytes_));
    auto* chunk = static_cast<std::byte*>(std::aligned_alloc(kChunkBytes, bytes));
    if (chunk == nullptr) throw std::bad_alloc();
#ifdef __linux__
    ::madvise(chunk, bytes, MADV_HUGEPAGE);  // a hint: random rows then miss the TLB less
#endif
    chunks_.emplace_back(chunk);
    for (std::size_t at = bytes; at > 0; at -= slab_bytes_) {
      free_.push_back(chunk + at - slab_bytes_);
    }
  }
  std::byte* slab = free_.back();
  free_.pop_back();
  return slab;
}

void SlabPool::release(const std::vector<std::byte*>& slabs) noexcept {
  const std::scoped_lock lock(mutex_);
  free_.insert(free_.end(), slabs.begin(), slabs.end());
}

}  // namespace embermesh

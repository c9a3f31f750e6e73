// Equal blocks of memory ("slabs") carved from huge pages, reused, and given back to the system.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <vector>

#include "standby_memory.h"

namespace embermesh {

// Thread-safe. A pool must outlive every slab that was taken from it.
//
// A chunk whose slabs are all free goes back where it came from, but for one, and 3 % of those
// in use, that are kept for the next rows: a page that comes back has to be cleared, which takes as
// long as making the rows on it. trim() gives those back too, and the pages of free slabs in chunks
// that others still use.
class SlabPool {
 public:
  static constexpr std::size_t kChunkBytes = StandbyMemory::kChunkBytes;

  // `slab_bytes` must be a power of two of at most kChunkBytes; `chunks` is where chunks come from
  // and go to, and must outlive the pool.
  SlabPool(std::size_t slab_bytes, StandbyMemory& chunks);
  ~SlabPool();
  SlabPool(const SlabPool&) = delete;
  SlabPool& operator=(const SlabPool&) = delete;

  [[nodiscard]] std::size_t slab_bytes() const noexcept { return slab_bytes_; }

  // A slab aligned to its size; contents are unspecified. Throws std::bad_alloc.
  [[nodiscard]] std::byte* acquire();

  // Gives slabs back for reuse by any owner.
  void release(std::span<std::byte* const> slabs) noexcept;

  void trim() noexcept;

  // Memory mapped now, in bytes.
  [[nodiscard]] std::size_t mapped_bytes() const;

 private:
  using FreeSlabs = std::vector<std::uint16_t>;    // numbers within a chunk
  using Chunks = std::map<std::byte*, FreeSlabs>;  // by address

  // How many empty chunks to keep.
  [[nodiscard]] std::size_t reserve() const noexcept {
    return 1 + (open_.size() + full_.size() - empty_) / 32;
  }
  [[nodiscard]] std::size_t slabs_per_chunk() const noexcept { return kChunkBytes / slab_bytes_; }
  void add_chunk();
  void release_one(std::byte* slab) noexcept;
  void unmap_empty(std::size_t keep) noexcept;

  const std::size_t slab_bytes_;
  StandbyMemory& chunks_;
  mutable std::mutex mutex_;
  Chunks open_;  // with a free slab; the lowest address is used first, so that the others empty
  Chunks full_;
  std::size_t empty_ = 0;  // chunks of open_ without a slab in use
};

}  // namespace embermesh

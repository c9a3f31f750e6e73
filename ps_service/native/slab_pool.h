// Equal blocks of memory ("slabs") carved from large chunks and reused: no malloc per row.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace embermesh {

// Thread-safe. A pool must outlive every slab that was taken from it.
class SlabPool {
 public:
  static constexpr std::size_t kChunkBytes = std::size_t{2} << 20;  // one huge page

  // `slab_bytes` must be a power of two.
  explicit SlabPool(std::size_t slab_bytes);

  [[nodiscard]] std::size_t slab_bytes() const noexcept { return slab_bytes_; }

  // A slab aligned to its size or to a chunk, whichever is smaller; contents are unspecified.
  // Throws std::bad_alloc.
  [[nodiscard]] std::byte* acquire();

  // Gives slabs back for reuse by any owner.
  void release(const std::vector<std::byte*>& slabs) noexcept;

 private:
  struct Free {
    void operator()(std::byte* chunk) const noexcept;
  };

  const std::size_t slab_bytes_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<std::byte, Free>> chunks_;
  std::vector<std::byte*> free_;
};

}  // namespace embermesh

// Memory of a fixed size for large tables that are looked up at random places.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>

#include "huge_pages.h"

namespace embermesh {

// Items that begin as zero bytes, on huge pages where that saves more than it costs: finding the
// page of a random item takes half the time there.
template <class T>
class HugeArray {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);

 public:
  HugeArray() = default;
  // Throws std::bad_alloc.
  explicit HugeArray(std::size_t size) : size_(size) {
    if (size == 0) return;
    // A huge page is the least for what needs half of one, so less than the half is left over.
    const std::size_t page = size * sizeof(T) < kHugePage / 2 ? kPage : kHugePage;
    const std::size_t bytes = (size * sizeof(T) + page - 1) / page * page;
    items_ = {reinterpret_cast<T*>(map_pages(bytes, page)), Unmap{bytes}};
  }

  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] T* data() noexcept { return items_.get(); }
  [[nodiscard]] std::span<T> items() noexcept { return {items_.get(), size_}; }

 private:
  static constexpr std::size_t kPage = std::size_t{1} << 16;  // a multiple of any system's
  static constexpr std::size_t kHugePage = std::size_t{1} << 21;

  struct Unmap {
    std::size_t bytes = 0;
    void operator()(T* items) const noexcept {
      unmap_pages(reinterpret_cast<std::byte*>(items), bytes);
    }
  };

  std::unique_ptr<T[], Unmap> items_;
  std::size_t size_ = 0;
};

}  // namespace embermesh

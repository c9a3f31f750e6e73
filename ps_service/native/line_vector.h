// Vectors that begin at a cache line, so that no load of a whole line touches two.
#pragma once

#include <cstddef>
#include <new>
#include <vector>

#include "simd.h"

namespace embermesh {

template <class T>
struct LineAllocator {
  using value_type = T;

  LineAllocator() = default;
  template <class Other>
  LineAllocator(const LineAllocator<Other>& /*other*/) noexcept {}

  // Throws std::bad_alloc.
  [[nodiscard]] T* allocate(std::size_t size) {
    return static_cast<T*>(::operator new(size * sizeof(T), std::align_val_t{kCacheLine}));
  }
  void deallocate(T* items, std::size_t /*size*/) noexcept {
    ::operator delete(items, std::align_val_t{kCacheLine});
  }
  bool operator==(const LineAllocator& /*other*/) const noexcept { return true; }
};

template <class T>
using LineVector = std::vector<T, LineAllocator<T>>;

}  // namespace embermesh

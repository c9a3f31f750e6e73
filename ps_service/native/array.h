// Memory of a fixed size that nobody clears.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace embermesh {

// Items of a number type, of any value until they are written: what will be overwritten as a whole
// need not be cleared first, which std::vector does.
template <class T>
class Array {
 public:
  Array() = default;
  // Throws std::bad_alloc.
  explicit Array(std::size_t size)
      : items_(std::make_unique_for_overwrite<T[]>(size)), size_(size) {}

  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] T* data() noexcept { return items_.get(); }
  [[nodiscard]] const T* data() const noexcept { return items_.get(); }
  [[nodiscard]] std::span<T> items() noexcept { return {items_.get(), size_}; }
  [[nodiscard]] std::span<const T> items() const noexcept { return {items_.get(), size_}; }

 private:
  std::unique_ptr<T[]> items_;
  std::size_t size_ = 0;
};

}  // namespace embermesh

#include "limit.h"

#include <algorithm>

#include "hash.h"
#include "huge_pages.h"
#include "simd.h"
#include "slab_pool.h"

namespace embermesh::bench {
namespace {

constexpr double kLoad = 0.8;  // of our index, on average
constexpr std::size_t kWindow = 16;
constexpr std::size_t kUnit = 96;  // 100,000 keys over 1024 partitions

std::size_t whole_chunks(std::size_t bytes) {
  return (bytes + SlabPool::kChunkBytes - 1) / SlabPool::kChunkBytes * SlabPool::kChunkBytes;
}

}  // namespace

Limit::Limit(std::size_t rows, std::size_t row_lines)
    : slots_(static_cast<std::size_t>(static_cast<double>(rows) / kLoad)),
      row_words_(row_lines * kCacheLine / sizeof(std::uint64_t)),
      row_bytes_(row_lines * kCacheLine),
      rows_bytes_(whole_chunks(rows * row_bytes_)),
      index_(reinterpret_cast<Slot*>(
          map_pages(whole_chunks(slots_ * sizeof(Slot)), SlabPool::kChunkBytes))),
      rows_(reinterpret_cast<std::uint64_t*>(map_pages(rows_bytes_, SlabPool::kChunkBytes))) {
  for (std::size_t i = 0; i < slots_; ++i) {
    index_[i].row = static_cast<std::uint32_t>((mix64(i) >> 32) * rows >> 32);
  }
  for (std::size_t i = 0; i < rows * row_words_; ++i) rows_[i] = i;
}

Limit::~Limit() {
  unmap_pages(reinterpret_cast<std::byte*>(index_), whole_chunks(slots_ * sizeof(Slot)));
  unmap_pages(reinterpret_cast<std::byte*>(rows_), rows_bytes_);
}

std::uint32_t Limit::place_of(std::uint64_t number) const noexcept {
  return static_cast<std::uint32_t>((mix64(number) >> 32) * slots_ >> 32);
}

std::uint64_t Limit::read(std::span<const std::uint32_t> places, std::size_t lines) const noexcept {
  std::uint64_t sum = 0;
  const std::size_t n = places.size();
  for (std::size_t at = 0; at < n + 2 * kUnit; at += kWindow) {
    for (std::size_t i = at; i < std::min(at + kWindow, n); ++i) {
      prefetch_line(&index_[places[i]]);
    }
    if (at >= kUnit) {
      for (std::size_t i = at - kUnit; i < std::min(at - kUnit + kWindow, n); ++i) {
        const std::uint64_t* row = rows_ + index_[places[i]].row * row_words_;
        prefetch_row(row, lines * kCacheLine);
      }
    }
    if (at < 2 * kUnit) continue;
    for (std::size_t i = at - 2 * kUnit; i < std::min(at - 2 * kUnit + kWindow, n); ++i) {
      const std::uint64_t* row = rows_ + index_[places[i]].row * row_words_;
      for (std::size_t line = 0; line < lines; ++line) sum += row[line * kCacheLine / 8];
    }
  }
  return sum;
}

}  // namespace embermesh::bench

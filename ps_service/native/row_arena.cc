#include "row_arena.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "simd.h"

namespace embermesh {

std::uint32_t RowArena::units_for(std::size_t floats) noexcept {
  constexpr std::size_t kLineUnits = kCacheLine / kUnitBytes;
  const std::size_t units = (floats + kUnitFloats - 1) / kUnitFloats;
  const std::size_t lines = (units + kLineUnits - 1) / kLineUnits * kLineUnits;
  return static_cast<std::uint32_t>(lines - units <= units / 8 ? lines : units);
}

RowArena::RowArena(SlabPool& pool, std::uint32_t units, RowNumber bound) noexcept
    : row_bytes_(units * kUnitBytes),
      slab_rows_(static_cast<std::uint32_t>(pool.slab_bytes() / row_bytes_)),
      slab_words_(
          std::bit_ceil(static_cast<std::uint32_t>((slab_rows_ + kWordBits - 1) / kWordBits))),
      pool_(&pool) {
  place_bits_ = static_cast<std::uint32_t>(std::bit_width(slab_rows_ - 1));
  place_mask_ = (std::uint32_t{1} << place_bits_) - 1;
  most_rows_ = std::size_t{bound >> place_bits_} * slab_rows_;  // whole slabs
}

RowArena::~RowArena() {
  if (!slabs_.empty()) pool_->release(slabs_);
}

void RowArena::swap(RowArena& other) noexcept {
  std::swap(slabs_, other.slabs_);
  std::swap(place_bits_, other.place_bits_);
  std::swap(place_mask_, other.place_mask_);
  std::swap(row_bytes_, other.row_bytes_);
  std::swap(slab_rows_, other.slab_rows_);
  std::swap(slab_words_, other.slab_words_);
  std::swap(rows_, other.rows_);
  std::swap(most_rows_, other.most_rows_);
  std::swap(pool_, other.pool_);
  std::swap(first_open_, other.first_open_);
  std::swap(used_, other.used_);
}

void RowArena::add_slab() {
  // Room first, so that a slab is never lost.
  if (slabs_.size() == slabs_.capacity()) slabs_.reserve(2 * slabs_.size() + 1);
  const std::size_t words = used_.size() + slab_words_;
  if (words > used_.capacity()) used_.reserve(2 * words);
  slabs_.push_back(pool_->acquire());
  used_.resize(words, 0);
  for (std::size_t place = slab_rows_; place < slab_words_ * kWordBits; ++place) {  // beyond it
    used_[words - slab_words_ + place / kWordBits] |= std::uint64_t{1} << place % kWordBits;
  }
}

RowNumber RowArena::allocate() {
  if (rows_ == slabs_.size() * slab_rows_) add_slab();
  while (~used_[first_open_] == 0) ++first_open_;
  std::uint64_t& word = used_[first_open_];
  const auto bit = static_cast<std::size_t>(std::countr_one(word));
  word |= std::uint64_t{1} << bit;
  ++rows_;
  const std::size_t slab = first_open_ >> std::countr_zero(slab_words_);
  const std::size_t place = (first_open_ & (slab_words_ - 1)) * kWordBits + bit;
  return static_cast<RowNumber>((slab << place_bits_) + place);
}

void RowArena::free(RowNumber number) noexcept {
  const std::size_t slab = number >> place_bits_;
  const std::size_t place = place_of(number);
  const std::size_t word = slab * slab_words_ + place / kWordBits;
  used_[word] &= ~(std::uint64_t{1} << place % kWordBits);
  first_open_ = std::min(first_open_, word);
  --rows_;
  while (!slabs_.empty() && is_last_slab_empty()) {
    pool_->release({&slabs_.back(), 1});
    slabs_.pop_back();
    used_.resize(used_.size() - slab_words_);
  }
}

void RowArena::move_down(RowNumber& number) noexcept {
  const RowNumber lower = allocate();  // never throws: a row beyond means a free place before
  std::memcpy(row(lower), row(number), row_bytes_);
  free(number);
  number = lower;
}

bool RowArena::is_last_slab_empty() const noexcept {
  std::size_t used = 0;
  for (std::size_t i = used_.size() - slab_words_; i < used_.size(); ++i) {
    used += static_cast<std::size_t>(std::popcount(used_[i]));
  }
  return used == slab_words_ * kWordBits - slab_rows_;
}

std::size_t RowArena::bytes() const noexcept {
  return slabs_.size() * (pool_->slab_bytes() + sizeof(std::byte*)) +
         used_.size() * sizeof(std::uint64_t);
}

}  // namespace embermesh

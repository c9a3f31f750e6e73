#include "slab_pool.h"

#include <cstdint>
#include <utility>

#include "huge_pages.h"

namespace embermesh {

SlabPool::SlabPool(std::size_t slab_bytes, StandbyMemory& chunks)
    : slab_bytes_(slab_bytes), chunks_(chunks) {}

SlabPool::~SlabPool() {
  for (const Chunks* chunks : {&open_, &full_}) {
    for (const auto& [memory, free] : *chunks) chunks_.give_back(memory);
  }
}

void SlabPool::add_chunk() {
  Chunks fresh;  // all that can fail comes before the pool changes
  FreeSlabs& free = fresh[nullptr];
  free.reserve(slabs_per_chunk());
  for (std::size_t slab = slabs_per_chunk(); slab > 0; --slab) {
    free.push_back(static_cast<std::uint16_t>(slab - 1));
  }
  auto node = fresh.extract(fresh.begin());
  node.key() = chunks_.take();
  open_.insert(std::move(node));
  ++empty_;
}

std::byte* SlabPool::acquire() {
  const std::scoped_lock lock(mutex_);
  if (open_.empty()) add_chunk();
  const auto chunk = open_.begin();
  FreeSlabs& free = chunk->second;
  if (free.size() == slabs_per_chunk()) --empty_;
  std::byte* slab = chunk->first + free.back() * slab_bytes_;
  free.pop_back();
  if (free.empty()) full_.insert(open_.extract(chunk));
  return slab;
}

void SlabPool::release(std::span<std::byte* const> slabs) noexcept {
  const std::scoped_lock lock(mutex_);
  for (std::byte* const slab : slabs) release_one(slab);
  unmap_empty(reserve());
}

void SlabPool::release_one(std::byte* slab) noexcept {
  const std::size_t within = reinterpret_cast<std::uintptr_t>(slab) & (kChunkBytes - 1);
  std::byte* const memory = slab - within;
  auto chunk = open_.find(memory);
  if (chunk == open_.end()) chunk = open_.insert(full_.extract(memory)).position;
  FreeSlabs& free = chunk->second;  // has room for every slab of its chunk
  free.push_back(static_cast<std::uint16_t>(within / slab_bytes_));
  if (free.size() == slabs_per_chunk()) ++empty_;
}

void SlabPool::unmap_empty(std::size_t keep) noexcept {
  for (auto chunk = open_.end(); empty_ > keep && chunk != open_.begin();) {
    --chunk;
    if (chunk->second.size() != slabs_per_chunk()) continue;
    chunks_.give_back(chunk->first);
    chunk = open_.erase(chunk);
    --empty_;
  }
}

void SlabPool::trim() noexcept {
  const std::scoped_lock lock(mutex_);
  unmap_empty(0);
  for (const auto& [memory, free] : open_) {
    for (const std::uint16_t slab : free) discard_pages(memory + slab * slab_bytes_, slab_bytes_);
  }
}

std::size_t SlabPool::mapped_bytes() const {
  const std::scoped_lock lock(mutex_);
  return (open_.size() + full_.size()) * kChunkBytes;
}

}  // namespace embermesh

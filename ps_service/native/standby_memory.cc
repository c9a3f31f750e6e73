#include "standby_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <new>

#include "huge_pages.h"

namespace embermesh {
namespace {

// Behind whoever trains, but not so far that it never comes to an end.
constexpr int kNice = 5;

std::byte* map_chunk() { return map_pages(StandbyMemory::kChunkBytes, StandbyMemory::kChunkBytes); }

// With memory behind it; null if there is none to be had.
std::byte* new_chunk() noexcept {
  constexpr std::size_t kSmallestPage = 4096;  // whatever size the kernel chooses
  try {
    std::byte* const chunk = map_chunk();
    for (std::size_t at = 0; at < StandbyMemory::kChunkBytes; at += kSmallestPage) {
      static_cast<volatile std::byte*>(chunk)[at] = std::byte{0};
    }
    return chunk;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

}  // namespace

StandbyMemory::StandbyMemory(std::size_t bytes)
    : wanted_(bytes / kChunkBytes + (bytes % kChunkBytes != 0 ? 1 : 0)) {
  if (wanted_ == 0) return;
  ready_.reserve(wanted_);
  filler_ = std::thread([this] { keep_filled(); });
}

StandbyMemory::~StandbyMemory() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  short_.notify_one();
  if (filler_.joinable()) filler_.join();
  for (std::byte* const chunk : ready_) unmap_pages(chunk, kChunkBytes);
}

std::byte* StandbyMemory::take() {
  {
    const std::scoped_lock lock(mutex_);
    if (!ready_.empty()) {
      std::byte* const chunk = ready_.back();
      ready_.pop_back();
      wake_if_short();
      return chunk;
    }
    ++cold_;
    wake_if_short();
  }
  return map_chunk();
}

void StandbyMemory::give_back(std::byte* chunk) noexcept {
  {
    const std::scoped_lock lock(mutex_);
    if (add(chunk)) return;
  }
  unmap_pages(chunk, kChunkBytes);
}

std::size_t StandbyMemory::bytes() const {
  const std::scoped_lock lock(mutex_);
  return ready_.size() * kChunkBytes;
}

std::uint64_t StandbyMemory::cold() const {
  const std::scoped_lock lock(mutex_);
  return cold_;
}

std::size_t StandbyMemory::target() const noexcept {
  return was_full_ ? std::max<std::size_t>(wanted_ / 4, 1) : wanted_;
}

bool StandbyMemory::add(std::byte* chunk) noexcept {
  if (ready_.size() >= target()) return false;
  ready_.push_back(chunk);
  if (ready_.size() == wanted_) was_full_ = true;
  return true;
}

void StandbyMemory::wake_if_short() noexcept {
  if (ready_.size() < target()) short_.notify_one();
}

void StandbyMemory::keep_filled() {
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNice);  // of this thread, on Linux
  std::unique_lock lock(mutex_);
  while (true) {
    short_.wait(lock, [this] { return stop_ || ready_.size() < target(); });
    if (stop_) return;
    lock.unlock();
    std::byte* const chunk = new_chunk();
    lock.lock();
    if (chunk == nullptr) {  // who takes one is told; try again then
      if (!stop_) short_.wait(lock);
    } else if (!add(chunk)) {  // someone gave one back meanwhile
      unmap_pages(chunk, kChunkBytes);
    }
  }
}

}  // namespace embermesh

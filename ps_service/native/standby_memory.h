// Huge pages that have memory behind them before anybody needs it.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace embermesh {

// A page that is mapped has no memory yet: who writes to it first waits until the kernel has found
// and cleared 2 MB, and a host of virtual machines until it has found them, which is up to 20 ms.
// Whoever adds rows holds the locks of their partitions meanwhile. So a thread writes to the next
// chunks beforehand, while others import, connect or wait for the network.
//
// It fills to the whole amount first, as a job's first steps make most of its new rows. Once that
// stood by, it keeps a quarter: later rows come one by one, idle memory is of no use to anyone, and
// to fill takes time from the steps.
//
// Thread-safe. Must outlive every chunk that was taken from it.
class StandbyMemory {
 public:
  static constexpr std::size_t kChunkBytes = std::size_t{2} << 20;  // one huge page

  // `bytes`, rounded up to whole chunks, are the whole amount; 0: none ever stand by, and no
  // thread.
  explicit StandbyMemory(std::size_t bytes = 0);
  ~StandbyMemory();
  StandbyMemory(const StandbyMemory&) = delete;
  StandbyMemory& operator=(const StandbyMemory&) = delete;

  // A chunk aligned to its size, with anything in it. Throws std::bad_alloc.
  [[nodiscard]] std::byte* take();

  // Keeps a chunk that was taken while fewer stand by than are to (see above), else gives it back
  // to the system.
  void give_back(std::byte* chunk) noexcept;

  // What stands by now, in bytes.
  [[nodiscard]] std::size_t bytes() const;
  // Chunks that were taken when none stood by.
  [[nodiscard]] std::uint64_t cold() const;

 private:
  void keep_filled();  // the life of the thread

  // These three need the mutex.
  [[nodiscard]] std::size_t target() const noexcept;  // chunks that are to stand by now
  [[nodiscard]] bool add(std::byte* chunk) noexcept;  // false: not needed, still the caller's
  void wake_if_short() noexcept;

  const std::size_t wanted_;  // chunks, the whole amount
  mutable std::mutex mutex_;
  std::condition_variable short_;  // fewer stand by than are to, or stop_
  std::vector<std::byte*> ready_;  // never grows beyond its capacity
  std::uint64_t cold_ = 0;
  bool was_full_ = false;
  bool stop_ = false;
  std::thread filler_;
};

}  // namespace embermesh

// Keys that were removed from one partition since somebody asked: what a delta snapshot must say
// besides the rows that changed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>
#include <vector>

namespace embermesh {

// It listens from the first drain() on: who never asks pays nothing. Bounded: a log that would grow
// beyond kBound drops what it has and says so, because a list that misses one removal is worth
// nothing. Not thread-safe: its partition's lock guards it.
class TombstoneLog {
 public:
  static constexpr std::size_t kBound = 8192;

  struct Tombstone {
    std::uint64_t key;
    std::uint32_t table;
  };
  struct Content {
    std::vector<Tombstone> removed;  // in order of removal; a key may come twice
    bool is_complete = true;
  };

  // Never fails: without memory the log becomes incomplete.
  void add(std::uint32_t table, std::uint64_t key) noexcept {
    if (!content_.is_complete) return;
    if (content_.removed.size() >= kBound) return lose();
    try {
      content_.removed.push_back({key, table});
    } catch (const std::bad_alloc&) {
      lose();
    }
  }

  // From now on incomplete: rows were removed that nobody listed.
  void lose() noexcept { content_ = Content{{}, false}; }

  // What was removed since the last call, and begins anew. The first call's content is incomplete.
  [[nodiscard]] Content drain() noexcept { return std::exchange(content_, Content{}); }

  [[nodiscard]] std::size_t bytes() const noexcept {
    return content_.removed.capacity() * sizeof(Tombstone);
  }

 private:
  Content content_{{}, false};
};

}  // namespace embermesh

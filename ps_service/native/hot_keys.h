// The keys that come most often, per table, from a small sample of the requests.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

namespace embermesh {

struct HotKey {
  std::uint64_t key;
  std::uint64_t count;  // occurrences, at most `error` too many
  std::uint64_t error;
  double share;  // of all occurrences that were counted
};

// Space-saving (Metwally, Agrawal & El Abbadi 2005): of N counted occurrences, every key with more
// than N / kCounters of them is in the sketch, and no count is too small. Counts are halved every
// `kMemory` occurrences, so that the keys of yesterday fade. Not thread-safe.
class SpaceSaving {
 public:
  static constexpr std::size_t kCounters = 128;
  static constexpr std::uint64_t kMemory = std::uint64_t{1} << 27;

  void add(std::uint64_t key, std::uint64_t occurrences) noexcept;
  // The `n` largest counts, descending; equal ones by key.
  [[nodiscard]] std::vector<HotKey> top(std::size_t n) const;

 private:
  // Apart from each other, so that a search is one run over 1 KiB.
  std::array<std::uint64_t, kCounters> keys_{};
  std::array<std::uint64_t, kCounters> counts_{};
  std::array<std::uint64_t, kCounters> errors_{};
  std::size_t used_ = 0;
  std::uint64_t total_ = 0;
};

// Thread-safe. A request pays for a hundred of its keys or so, and for none while another
// thread is in here: what is lost is a part of a sample.
class HotKeySampler {
 public:
  explicit HotKeySampler(std::size_t tables) : tables_(tables) {}

  // `counts` holds groups of one count per table, `keys` the keys of group 0 / table 0, ...
  void sample(std::span<const std::uint32_t> counts, std::span<const std::uint64_t> keys) noexcept;
  [[nodiscard]] std::vector<HotKey> top(std::size_t table, std::size_t n) const;
  void clear();

 private:
  static constexpr std::size_t kStride = 61;  // one key in so many; a prime, so that no pattern of
                                              // requests hides keys from it
  static constexpr std::size_t kMaxSamples = 128;  // of a request

  std::atomic<std::uint64_t> requests_{0};
  mutable std::mutex mutex_;
  std::vector<SpaceSaving> tables_;
};

}  // namespace embermesh

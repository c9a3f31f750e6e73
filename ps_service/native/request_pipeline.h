// The way of a routed request through its partitions: three stages, so that no key waits for memory
// alone.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "partition.h"
#include "request_router.h"

namespace embermesh {

// The locks of partitions [first, next) that have entries, taken in ascending order. A thread that
// waits for one holds only lower ones, so that two threads never wait for each other.
class LockWindow {
 public:
  LockWindow(const Partitions& partitions, const RequestRouter& router,
             std::uint32_t first) noexcept
      : partitions_(&partitions), router_(&router), first_(first), next_(first) {}
  LockWindow(const LockWindow&) = delete;
  LockWindow& operator=(const LockWindow&) = delete;
  ~LockWindow() { unlock_below(next_); }

  void lock_below(std::uint32_t end) {
    for (; next_ < end; ++next_) {
      if (has_entries(next_)) (*partitions_)[next_]->lock();
    }
  }
  void unlock_below(std::uint32_t end) noexcept {
    for (; first_ < end; ++first_) {
      if (has_entries(first_)) (*partitions_)[first_]->unlock();
    }
  }

 private:
  [[nodiscard]] bool has_entries(std::uint32_t partition) const noexcept {
    return router_->start(partition) < router_->start(partition + 1);
  }

  const Partitions* partitions_;
  const RequestRouter* router_;
  std::uint32_t first_;
  std::uint32_t next_;
};

// Keys that go through a stage at a time.
inline constexpr std::size_t kWindow = 8;

// The keys of a stage: neighbours on the way.
struct Unit {
  std::span<const Entry> entries;
  std::uint32_t first = 0;  // partition of the first entry
  std::uint32_t end = 0;    // one past the partition of the last entry
};

// Divides the entries of partitions [first, end) into units: as many partitions as it takes to
// hide one memory latency behind others, few enough to hold their locks.
class UnitSource {
 public:
  // A partition of more than `most` entries is divided, unless that is 0.
  UnitSource(const RequestRouter& router, std::uint32_t first, std::uint32_t end, std::size_t most)
      : router_(&router), partition_(first), end_(end), most_(most), at_(router.start(first)) {}

  // Without entries: there are no more.
  [[nodiscard]] Unit next() noexcept {
    constexpr std::size_t kEnough = 64;
    constexpr int kMostPartitions = 16;  // of a unit; three units are on their way
    Unit unit;
    const std::size_t start = at_;
    for (int used = 0; partition_ < end_ && used < kMostPartitions && at_ - start < kEnough;) {
      const std::size_t stop = router_->start(partition_ + 1);
      if (at_ < stop) {
        if (used++ == 0) unit.first = partition_;
        unit.end = partition_ + 1;
        at_ = most_ == 0 ? stop : std::min(stop, start + most_);
      }
      if (at_ == stop) ++partition_;
    }
    unit.entries = router_->entries().subspan(start, at_ - start);
    return unit;
  }

 private:
  const RequestRouter* router_;
  std::uint32_t partition_;
  std::uint32_t end_;
  std::size_t most_;
  std::size_t at_;
};

// Runs a verb over all units of `source`. While unit u is in the last stage, unit u + 1 is in the
// second and u + 2 in the first, a window of keys each in turn:
//   verb.prefetch(entries)             asks for the lines of the index
//   verb.begin(lane, entries)          before the second stage of a unit
//   verb.find(lane, entries, first)    finds the rows and asks for their lines
//   verb.settle(lane)                  finds what find, two windows ago, left for want of a line
//   verb.finish(lane, entries, first)  uses the rows; `first` is the place in the unit
// `lane`, 0 or 1, names the working memory of one unit from begin to its last finish.
template <class Verb>
void run_pipeline(Verb& verb, UnitSource source, LockWindow& locks) {
  const auto window = [](const Unit& unit, std::size_t first) {
    return unit.entries.subspan(first, std::min(kWindow, unit.entries.size() - first));
  };
  Unit finding;
  Unit finishing;
  for (std::size_t lane = 0;; lane ^= 1) {
    const Unit fresh = source.next();
    locks.lock_below(fresh.end);
    const std::size_t longest =
        std::max({fresh.entries.size(), finding.entries.size(), finishing.entries.size()});
    if (longest == 0) return;
    verb.begin(lane, finding.entries);
    for (std::size_t first = 0; first < longest; first += kWindow) {
      if (first < fresh.entries.size()) verb.prefetch(window(fresh, first));
      verb.settle(lane);
      if (first < finding.entries.size()) verb.find(lane, window(finding, first), first);
      if (first < finishing.entries.size()) verb.finish(lane ^ 1, window(finishing, first), first);
    }
    verb.settle(lane);
    verb.settle(lane);
    // A divided partition stays locked for its next unit.
    if (!finishing.entries.empty()) {
      locks.unlock_below(finding.entries.empty() ? finishing.end : finding.first);
    }
    finishing = finding;
    finding = fresh;
  }
}

}  // namespace embermesh

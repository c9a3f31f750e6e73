// The way of a routed request through its partitions: in stages, so that no key waits for memory
// alone.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
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
inline constexpr std::size_t kWindow = 16;

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

  [[nodiscard]] const RequestRouter& router() const noexcept { return *router_; }

  // Without entries: there are no more.
  [[nodiscard]] Unit next() noexcept {
    constexpr std::size_t kEnough = 64;
    constexpr int kMostPartitions = 16;  // of a unit; four units are on their way
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

// Neighbours of one partition.
struct Run {
  RowStore* store;
  std::size_t end;  // one past the last, in the unit
};

// A unit on its way, with the place up to which each stage has come.
class Lane {
 public:
  // Another unit of `router`. Throws std::bad_alloc.
  void take(const Unit& unit, const RequestRouter& router, const Partitions& partitions) {
    unit_ = unit;
    runs_.clear();
    const auto offset = static_cast<std::size_t>(unit.entries.data() - router.entries().data());
    for (std::uint32_t p = unit.first; p < unit.end; ++p) {
      const std::size_t stop = std::min(router.start(p + 1) - offset, size());
      if (stop == (runs_.empty() ? 0 : runs_.back().end)) continue;
      runs_.push_back({&partitions[p]->store(), stop});
      runs_.back().store->prefetch_lists();
    }
  }
  // Before the first stage: what the second one reads to find rows.
  void prefetch_slabs() const noexcept {
    for (const Run& run : runs_) run.store->prefetch_slabs();
  }
  // A stage begins.
  void rewind() noexcept {
    at_ = 0;
    run_ = runs_.data();
  }

  [[nodiscard]] const Unit& unit() const noexcept { return unit_; }
  [[nodiscard]] std::size_t size() const noexcept { return unit_.entries.size(); }

  // Calls stage(run, entries, place of the first) for the next window of the unit, run by run.
  template <class Stage>
  [[gnu::always_inline]] void next_window(const Stage& stage) {
    const std::size_t end = std::min(at_ + kWindow, size());
    while (at_ < end) {
      const std::size_t stop = std::min(end, run_->end);
      stage(*run_, unit_.entries.subspan(at_, stop - at_), at_);
      at_ = stop;
      if (stop == run_->end) ++run_;
    }
  }

 private:
  Unit unit_;
  std::vector<Run> runs_;
  std::size_t at_ = 0;
  const Run* run_ = nullptr;
};

// Runs a verb over all units of `source`. While unit u is in the last stage, unit u + 1 is in the
// second, u + 2 in the first, a window of keys each in turn, and u + 3 enters: its partitions are
// locked and their lists asked for.
//   verb.prefetch(run, entries)              asks for the lines of the index
//   verb.begin(half, entries)                before the second stage of a unit
//   verb.find(half, run, entries, first)     finds the rows and asks for their lines
//   verb.settle(half)                        after it: finds what was not where most are
//   verb.finish(half, run, entries, first)   uses the rows; `first` is the place in the unit
// `half`, 0 or 1, names the working memory of one unit from begin to its last finish. To be called
// where the stages are seen by the compiler: they are a few dozen instructions.
template <class Verb>
void run_pipeline(Verb& verb, const Partitions& partitions, UnitSource source, LockWindow& locks) {
  std::array<Lane, 4> lanes;
  Unit coming = source.next();
  for (std::size_t round = 0;; ++round) {
    Lane& entering = lanes[round % 4];
    Lane& fresh = lanes[(round + 3) % 4];
    Lane& finding = lanes[(round + 2) % 4];
    Lane& finishing = lanes[(round + 1) % 4];
    const std::size_t half = round % 2;
    const Unit unit = std::exchange(coming, source.next());
    for (std::uint32_t p = coming.first; p < coming.end; ++p) partitions[p]->prefetch();
    locks.lock_below(unit.end);
    // A divided partition stays locked for its next unit.
    const std::uint32_t done = finding.size() == 0 ? finishing.unit().end : finding.unit().first;
    entering.take(unit, source.router(), partitions);
    fresh.prefetch_slabs();
    for (Lane* lane : {&fresh, &finding, &finishing}) lane->rewind();
    const std::size_t longest = std::max({fresh.size(), finding.size(), finishing.size()});
    if (longest == 0 && entering.size() == 0) return;
    verb.begin(half, finding.unit().entries);
    for (std::size_t at = 0; at < longest; at += kWindow) {
      fresh.next_window([&](const Run& run, std::span<const Entry> entries, std::size_t)
                            __attribute__((always_inline)) { verb.prefetch(run, entries); });
      finding.next_window(
          [&](const Run& run, std::span<const Entry> entries, std::size_t first)
              __attribute__((always_inline)) { verb.find(half, run, entries, first); });
      finishing.next_window(
          [&](const Run& run, std::span<const Entry> entries, std::size_t first)
              __attribute__((always_inline)) { verb.finish(half ^ 1, run, entries, first); });
    }
    verb.settle(half);
    if (finishing.size() > 0) locks.unlock_below(done);
  }
}

}  // namespace embermesh

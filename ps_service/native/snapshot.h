// A snapshot of a whole shard as it was at one instant, taken while traffic goes on.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "partition.h"

namespace embermesh {

// The snapshots of one shard: at most one is in the making. Thread-safe.
class SnapshotBook {
 public:
  // Number of the latest snapshot that has begun; partitions compare it with what they last saw.
  [[nodiscard]] const std::atomic<std::uint64_t>& now() const noexcept { return now_; }

 private:
  friend class Snapshot;

  std::atomic<std::uint64_t> now_ = 0;
  std::atomic<bool> is_open_ = false;
  std::optional<std::uint64_t> last_id_;  // of the latest complete one; guarded by is_open_
};

// Beginning one costs the same for any number of rows: it moves the shard's clock by one tick.
// A verb that meets the partition before the tick is in the snapshot, a later one is not; so the
// content is that of one instant: what had returned before the constructor is in, what was called
// after it is not.
//
// While it lives, the first change of a row in a partition that is not dumped yet copies the row.
// Destroying it without commit() gives it up: its changes then count for the next one.
//
// Thread-safe. The shard must outlive it.
class Snapshot {
 public:
  // `id` is the caller's name for it. With `since`, only what changed after the snapshot of that
  // id will be dumped. Throws std::invalid_argument if another one is in the making, or if `since`
  // is not the latest complete one.
  Snapshot(const Schema& schema, Partitions& partitions, SnapshotBook& book, std::uint64_t id,
           std::optional<std::uint64_t> since);
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;
  ~Snapshot() { abandon(); }

  // Rows per table at the instant.
  [[nodiscard]] std::vector<std::uint64_t> rows();

  // The partition at the instant, or since `since`, as a block; nothing if it has no rows or no
  // changes. Each partition once. In a delta, a partition whose changes are not known comes whole.
  // Throws std::invalid_argument after commit, for a second time or a bad number.
  [[nodiscard]] std::optional<std::string> dump(std::int64_t partition);

  // Everything is safely stored: later snapshots may be deltas of this one. Later calls do nothing.
  void commit() noexcept { close(true); }
  // Nobody wants it any more: frees what it holds. Later calls do nothing.
  void abandon() noexcept { close(false); }

 private:
  void close(bool committed) noexcept;

  const Schema& schema_;
  Partitions& partitions_;
  SnapshotBook& book_;
  const std::uint64_t id_;
  const bool is_delta_;
  std::mutex mutex_;  // before any partition's
  std::vector<bool> dumped_;
  bool is_open_ = true;
};

}  // namespace embermesh

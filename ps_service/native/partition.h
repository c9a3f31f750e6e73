// One partition: its rows and the lock that guards them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "lifecycle.h"
#include "lifecycle_block.h"
#include "partition_block.h"
#include "row_store.h"
#include "shard_stats.h"
#include "simd.h"
#include "snapshot_log.h"
#include "sweep.h"
#include "table_config.h"

namespace embermesh {

// A row of a snapshot, and where it lies; kNoRow once it is no longer as it was.
struct SnapshotRow {
  std::uint64_t key;
  std::uint32_t table;
  RowNumber row;
};

// What of a partition belongs into a block of a snapshot.
struct PartitionCut {
  BlockKind kind = BlockKind::kWhole;
  std::vector<SnapshotRow> rows;
  std::vector<TableKey> removed;  // keys may repeat, and may be among the rows
};

// Requests lock several partitions at once, always in ascending order (request_pipeline.h); the
// verbs here lock this one alone. No pointer into a row outlives the lock.
class alignas(kCacheLine) Partition {
 public:
  // Number `number` of the job's `partitions`. `snapshots` counts the snapshots that have begun.
  Partition(const Schema& schema, RowMemory& memory, std::uint32_t number, std::uint32_t partitions,
            const std::atomic<std::uint64_t>& snapshots)
      : snapshots_(&snapshots),
        store_(schema, memory, number),
        life_(schema, partitions),
        schema_(&schema),
        memory_(&memory),
        number_(number) {}

  // Asks for what lock() and the store read first. Needs no lock.
  void prefetch() const noexcept { prefetch_row<Cache::kFirst>(this, kHotBytes); }
  // Throws std::bad_alloc, and then it is not locked.
  void lock() {
    mutex_.lock();
    try {
      follow_snapshots();
    } catch (...) {
      mutex_.unlock();
      throw;
    }
  }
  void unlock() { mutex_.unlock(); }
  // Only under the lock.
  [[nodiscard]] RowStore& store() noexcept { return store_; }
  [[nodiscard]] Lifecycle& life() noexcept { return life_; }

  // Adds the rows per table to `rows`.
  void count_rows(std::span<std::uint64_t> rows) const;
  [[nodiscard]] std::size_t bytes() const;
  [[nodiscard]] TableRows copy_rows(std::uint32_t table) const;
  [[nodiscard]] std::vector<TableRows> copy_rows() const;

  // Packs rows and indexes, a slice at a time with the lock free in between; unless `always`, only
  // where erasing has left many holes.
  void compact(bool always) noexcept;

  // One slice of the sweep; returns how many rows it removed. Throws std::bad_alloc, and then
  // nothing has changed.
  std::size_t evict(Sweep& sweep);

  // Adds to what is there already.
  void add_stats(std::span<TableStats> tables) const;
  void add_stats(IndexStats& index) const;
  [[nodiscard]] TombstoneLog::Content drain_tombstones();

  // Metadata of the rows of the tables that evict. `now` is any time near their events.
  [[nodiscard]] std::vector<TableRecords> copy_records(std::uint32_t now) const;
  // Sets the metadata of the rows that are there; returns how many.
  std::size_t set_records(const LifecycleBlock& block);

  // For Snapshot, in this order. Rows per table when the latest snapshot began, added to `rows`.
  void count_snapshot_rows(std::span<std::uint64_t> rows);
  // What the snapshot holds of this partition, or what of it changed since the one before. Throws
  // std::bad_alloc if the partition can't tell for want of memory.
  [[nodiscard]] PartitionCut begin_snapshot(bool only_changes);
  // Copies those of `rows` that are still as they were, as rows `first`... of their table, and
  // makes the others kNoRow.
  void copy_untouched(std::span<SnapshotRow> rows, std::size_t first, BlockBuilder& block);
  // The rows that are not as they were. Throws as begin_snapshot does.
  [[nodiscard]] PreImages end_snapshot();
  void settle_snapshot(bool committed) noexcept;

  // Replaces the content. Throws std::bad_alloc, and then nothing has changed.
  void replace(RowStore&& content);
  // Makes the changes of a delta block; returns its number of rows. Throws std::bad_alloc, and then
  // a part of them is made.
  std::size_t change(const PartitionBlock& delta);
  void clear() { replace(RowStore(*schema_, *memory_, number_)); }

 private:
  static constexpr std::size_t kHotBytes = 3 * kCacheLine;

  void follow_snapshots() { store_.follow(snapshots_->load(std::memory_order_acquire)); }

  const std::atomic<std::uint64_t>* snapshots_;
  mutable std::mutex mutex_;
  RowStore store_;
  Lifecycle life_;
  const Schema* schema_;
  RowMemory* memory_;
  std::uint32_t number_;
};

using Partitions = std::vector<std::unique_ptr<Partition>>;

}  // namespace embermesh

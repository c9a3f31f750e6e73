// One partition: its rows and the lock that guards them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "lifecycle.h"
#include "lifecycle_block.h"
#include "row_store.h"
#include "shard_stats.h"
#include "simd.h"
#include "sweep.h"
#include "table_config.h"

namespace embermesh {

// Requests lock several partitions at once, always in ascending order (request_pipeline.h); the
// verbs here lock this one alone. No pointer into a row outlives the lock.
class alignas(kCacheLine) Partition {
 public:
  // `partitions`: how many the job has.
  Partition(const Schema& schema, RowMemory& memory, std::uint32_t partitions)
      : schema_(&schema), memory_(&memory), store_(schema, memory), life_(schema, partitions) {}

  void lock() { mutex_.lock(); }
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

  // Replaces the content.
  void replace(RowStore&& content);
  void clear() { replace(RowStore(*schema_, *memory_)); }

 private:
  const Schema* schema_;
  RowMemory* memory_;
  mutable std::mutex mutex_;
  RowStore store_;
  Lifecycle life_;
};

}  // namespace embermesh

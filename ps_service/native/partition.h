// One partition: its rows and the lock that guards them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "row_store.h"
#include "simd.h"
#include "table_config.h"

namespace embermesh {

// Requests lock several partitions at once, always in ascending order (request_pipeline.h); the
// verbs here lock this one alone. No pointer into a row outlives the lock.
class alignas(kCacheLine) Partition {
 public:
  Partition(const Schema& schema, RowMemory& memory)
      : schema_(&schema), memory_(&memory), store_(schema, memory) {}

  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }
  // Only under the lock.
  [[nodiscard]] RowStore& store() noexcept { return store_; }

  // Adds the rows per table to `rows`.
  void count_rows(std::span<std::uint64_t> rows) const;
  [[nodiscard]] std::size_t bytes() const;
  [[nodiscard]] TableRows copy_rows(std::uint32_t table) const;
  [[nodiscard]] std::vector<TableRows> copy_rows() const;

  // Packs rows and indexes, a slice at a time with the lock free in between; unless `always`, only
  // where erasing has left many holes.
  void compact(bool always) noexcept;

  // Replaces the content.
  void replace(RowStore&& content);
  void clear() { replace(RowStore(*schema_, *memory_)); }

 private:
  const Schema* schema_;
  RowMemory* memory_;
  mutable std::mutex mutex_;
  RowStore store_;
};

}  // namespace embermesh

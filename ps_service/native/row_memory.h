// Where the rows and indexes of a shard get their memory: which tables share an arena, and the
// pools.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "flat_index.h"
#include "row_arena.h"
#include "row_names.h"
#include "slab_pool.h"
#include "standby_memory.h"
#include "table_config.h"

namespace embermesh {

// Tables whose rows have the same width share an arena in each partition, so that a small table
// does not hold a slab of its own. Immutable but for the pools, which are thread-safe.
class RowMemory {
 public:
  // `standby`: where the pools' chunks come from.
  RowMemory(const Schema& schema, std::shared_ptr<StandbyMemory> standby);

  [[nodiscard]] RowNames names() const noexcept { return names_; }

  [[nodiscard]] std::size_t arenas() const noexcept { return widths_.size(); }
  // Per table, place of its arena, below arenas().
  [[nodiscard]] std::span<const std::uint32_t> arena_of() const noexcept { return arena_of_; }
  [[nodiscard]] RowArena make_arena(std::size_t arena) noexcept {
    return {*widths_[arena].pool, widths_[arena].units, names_.bound()};
  }
  [[nodiscard]] SlabPool& index_pool() noexcept { return index_pool_; }

  // Gives all free memory back to the operating system.
  void trim() noexcept;

 private:
  struct Width {
    std::uint32_t units;
    SlabPool* pool;
  };

  [[nodiscard]] SlabPool& pool_for(std::uint32_t units);

  RowNames names_;
  std::shared_ptr<StandbyMemory> standby_;  // outlives the pools
  SlabPool index_pool_;
  std::deque<SlabPool> row_pools_;  // one per size of slab
  std::vector<Width> widths_;
  std::vector<std::uint32_t> arena_of_;  // [T]
};

}  // namespace embermesh

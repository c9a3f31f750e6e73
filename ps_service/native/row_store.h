// The rows of all tables in one partition: an index per table and the memory behind them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "flat_index.h"
#include "partition_block.h"
#include "row_arena.h"
#include "row_memory.h"
#include "snapshot_log.h"
#include "table_config.h"

namespace embermesh {

// Not thread-safe: its partition's lock guards it.
class RowStore {
 public:
  // `schema` and `memory` must outlive the store.
  RowStore(const Schema& schema, RowMemory& memory);

  // To find keys by their hash (hash.h) and rows by their number. A slot is valid until the next
  // add or erase, a row until it is erased or compact() is called.
  [[nodiscard]] const FlatIndex& index(std::uint32_t table) const noexcept {
    return tables_[table].index;
  }
  [[nodiscard]] const RowArena& arena(std::uint32_t table) const noexcept {
    return arenas_[tables_[table].arena];
  }

  // Asks for what index(table) reads first. A batch of many tables names an index of its own for
  // nearly every key of a partition, and would wait for each.
  void prefetch_table(std::uint32_t table) const noexcept {
    prefetch_row<Cache::kFirst>(&tables_[table], sizeof(Table));
  }

  // The row to be changed; tells the log of it before. Throws std::bad_alloc, and then nothing may
  // change.
  [[nodiscard]] float* writable_row(std::uint32_t table, Slot slot) {
    if (log_.is_watching() && !log_.is_touched(place(table, slot.row()))) touch(table, slot);
    return arena(table).row(slot.row());
  }

  // Adds a key, which must be absent; the caller fills the row.
  // Throws std::bad_alloc, and then no key has been added.
  [[nodiscard]] float* add(std::uint32_t table, std::uint64_t hash);

  // Changes the store to what the block says: adds or changes its rows, removes what it names as
  // removed. Throws std::bad_alloc with a part of the block done. Returns the block's rows.
  std::size_t apply(const PartitionBlock& block);

  // Removes the key of `slot`, which came from find, and frees its row.
  void erase(std::uint32_t table, Slot slot) noexcept;

  // Whether erasing has left so many holes that compact() pays.
  [[nodiscard]] bool is_sparse() const noexcept;

  // One slice of bounded work of a pass that packs all rows into as few slabs as they need and
  // shrinks indexes that are less than a quarter full. Whether the pass has more slices.
  bool compact() noexcept;

  [[nodiscard]] std::size_t rows(std::size_t table) const noexcept {
    return tables_[table].index.size();
  }
  [[nodiscard]] std::size_t size() const noexcept;
  [[nodiscard]] std::size_t bytes() const noexcept;

  // Where the row of a table lies, for the log.
  [[nodiscard]] RowPlace place(std::uint32_t table, RowNumber number) const noexcept {
    return {tables_[table].arena, number};
  }
  [[nodiscard]] SnapshotLog& log() noexcept { return log_; }
  [[nodiscard]] const SnapshotLog& log() const noexcept { return log_; }
  // Lets the log notice that snapshot `now` has begun. Throws std::bad_alloc, and then nothing has
  // changed.
  void follow(std::uint64_t now) {
    if (log_.is_behind(now)) turn_log(now);
  }
  // Tells the log of every row, because all will go. Throws std::bad_alloc.
  void touch_all();

  // Calls visit(table, slot) for every row, in no particular order.
  template <class Visit>
  void for_each(const Visit& visit) const {
    for (std::uint32_t table = 0; table < tables_.size(); ++table) {
      tables_[table].index.for_each([&](Slot slot) { visit(table, slot); });
    }
  }

  // Copies of all rows of `table`, in no particular order.
  [[nodiscard]] TableRows copy_rows(std::uint32_t table) const;
  [[nodiscard]] std::vector<TableRows> copy_rows() const;

 private:
  struct Table {
    FlatIndex index;
    std::uint32_t arena;
  };

  void turn_log(std::uint64_t now);
  void touch(std::uint32_t table, Slot slot);

  const Schema* schema_;
  std::vector<Table> tables_;
  std::vector<RowArena> arenas_;
  SnapshotLog log_;
  std::size_t pack_table_ = 0;  // where the next slice of compact() goes on
  std::size_t pack_bucket_ = 0;
};

}  // namespace embermesh

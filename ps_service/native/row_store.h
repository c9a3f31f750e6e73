// The rows of all tables in one partition: their index and the memory behind them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <vector>

#include "flat_index.h"
#include "partition_block.h"
#include "row_arena.h"
#include "row_memory.h"
#include "snapshot_log.h"
#include "table_config.h"

namespace embermesh {

// A partition has as many rows of one width as 32 bits can name beside a table. Its what() names
// table, partition and bound.
class TooManyRows : public std::bad_alloc {
 public:
  explicit TooManyRows(const std::string& what)
      : what_(std::make_shared<const std::string>(what)) {}
  [[nodiscard]] const char* what() const noexcept override { return what_->c_str(); }

 private:
  std::shared_ptr<const std::string> what_;  // for copies that can't fail
};

// Not thread-safe: its partition's lock guards it.
class RowStore {
 public:
  // `partition` is its number. `schema` and `memory` must outlive the store.
  RowStore(const Schema& schema, RowMemory& memory, std::uint32_t partition);

  // To find keys by their hash (hash.h) and rows by their number. A slot is valid until the next
  // add or erase, a row until it is erased or compact() is called.
  [[nodiscard]] const FlatIndex& index() const noexcept { return index_; }
  [[nodiscard]] Slot find(std::uint32_t table, std::uint64_t hash) const noexcept {
    return index_.find(table, hash);
  }
  [[nodiscard]] float* row(std::uint32_t table, RowNumber number) const noexcept {
    return arenas_[arena_of_[table]].row(number);
  }
  [[nodiscard]] float* row(Slot slot) const noexcept { return row(slot.table(), slot.row()); }

  // Asks for what find() reads first, and on the way to what row() does; then for the latter.
  void prefetch_lists() const noexcept {
    index_.prefetch_pages();
    for (const RowArena& arena : arenas_) prefetch_line<Cache::kFirst>(&arena);
  }
  void prefetch_slabs() const noexcept {
    for (const RowArena& arena : arenas_) arena.prefetch_slabs();
  }

  // The row of the table's slot, to be changed; tells the log of it before. Throws std::bad_alloc,
  // and then nothing may change.
  [[nodiscard]] float* writable_row(std::uint32_t table, Slot slot) {
    if (log_.is_watching() && !log_.is_touched(place(table, slot.row()))) touch(slot);
    return row(table, slot.row());
  }

  // The slot of a key, or the empty one where add() may put it. Throws std::bad_alloc.
  [[nodiscard]] Slot find_or_next(std::uint32_t table, std::uint64_t hash) {
    index_.reserve_one();
    return index_.find_or_next(table, hash);
  }
  // Adds a key at the empty slot that find_or_next gave; the caller fills the row.
  // Throws TooManyRows or another std::bad_alloc, and then no key has been added.
  [[nodiscard]] float* add(Slot next, std::uint32_t table, std::uint64_t hash);

  // Changes the store to what the block says: adds or changes its rows, removes what it names as
  // removed. Throws std::bad_alloc with a part of the block done. Returns the block's rows.
  std::size_t apply(const PartitionBlock& block);

  // Removes the key of `slot`, which came from find, and frees its row.
  void erase(Slot slot) noexcept;

  // Whether erasing has left so many holes that compact() pays.
  [[nodiscard]] bool is_sparse() const noexcept;

  // One slice of bounded work of a pass that packs all rows into as few slabs as they need and
  // shrinks an index that is less than a quarter full. Whether the pass has more slices.
  bool compact() noexcept;

  [[nodiscard]] std::size_t rows(std::size_t table) const noexcept { return rows_[table]; }
  [[nodiscard]] std::size_t size() const noexcept { return index_.size(); }
  [[nodiscard]] std::size_t bytes() const noexcept;

  // Where the row of a table lies, for the log.
  [[nodiscard]] RowPlace place(std::uint32_t table, RowNumber number) const noexcept {
    return {arena_of_[table], number};
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

  // Copies of all rows of `table`, in no particular order; walks the index of all.
  [[nodiscard]] TableRows copy_rows(std::uint32_t table) const;
  // Per table, in one walk.
  [[nodiscard]] std::vector<TableRows> copy_rows() const;

 private:
  [[noreturn]] void refuse_row(std::uint32_t table) const;
  [[nodiscard]] TableRows room_for(std::uint32_t table) const;
  void copy_row(Slot slot, TableRows& out) const;
  void turn_log(std::uint64_t now);
  void touch(Slot slot);

  FlatIndex index_;
  const std::uint32_t* arena_of_;  // [T]: place in arenas_
  std::vector<RowArena> arenas_;
  SnapshotLog log_;
  const Schema* schema_;
  std::vector<std::uint64_t> rows_;  // [T]
  std::size_t pack_bucket_ = 0;      // where the next slice of compact() goes on
  std::uint32_t partition_;
};

}  // namespace embermesh

// The rows of all tables in one partition: an index per table and the memory behind them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "flat_index.h"
#include "partition_block.h"
#include "row_arena.h"
#include "row_memory.h"
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

  // Adds a key, which must be absent; the caller fills the row.
  // Throws std::bad_alloc, and then no key has been added.
  [[nodiscard]] float* add(std::uint32_t table, std::uint64_t hash);

  // Removes the key of `slot`, which came from find, and frees its row.
  void erase(std::uint32_t table, Slot* slot) noexcept;

  // Whether erasing has left so many holes that compact() pays.
  [[nodiscard]] bool is_sparse() const noexcept;

  // One slice of bounded work of a pass that packs all rows into as few slabs as they need and
  // shrinks indexes that are less than a quarter full. Whether the pass has more slices.
  bool compact() noexcept;

  [[nodiscard]] std::size_t rows(std::size_t table) const noexcept {
    return tables_[table].index.size();
  }
  [[nodiscard]] std::size_t bytes() const noexcept;

  // Copies of all rows of `table`, in no particular order.
  [[nodiscard]] TableRows copy_rows(std::uint32_t table) const;
  [[nodiscard]] std::vector<TableRows> copy_rows() const;

 private:
  struct Table {
    FlatIndex index;
    std::uint32_t arena;
  };

  const Schema* schema_;
  std::vector<Table> tables_;
  std::vector<RowArena> arenas_;
  std::size_t pack_table_ = 0;  // where the next slice of compact() goes on
  std::size_t pack_bucket_ = 0;
};

}  // namespace embermesh

// The rows of all tables in one partition: the index and the memory behind it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "flat_index.h"
#include "partition_block.h"
#include "row_arena.h"
#include "table_config.h"

namespace embermesh {

// Not thread-safe: its partition's lock guards it.
class RowStore {
 public:
  // `schema` and `pool` must outlive the store.
  RowStore(const Schema& schema, SlabPool& pool)
      : schema_(&schema), arena_(pool), rows_(schema.size(), 0) {}

  [[nodiscard]] RowNumber find(std::uint32_t table, std::uint64_t key,
                               std::uint32_t hash) const noexcept {
    return index_.find(table, key, hash);
  }
  void prefetch(std::uint32_t hash) const noexcept { index_.prefetch(hash); }

  // Adds (table, key), which must be absent; the caller fills the row.
  // Throws std::bad_alloc, and then no key has been added.
  RowNumber add(std::uint32_t table, std::uint64_t key, std::uint32_t hash);

  [[nodiscard]] float* row(RowNumber number) const noexcept { return arena_.row(number); }
  [[nodiscard]] std::span<const std::uint64_t> rows() const noexcept { return rows_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return index_.bytes() + arena_.bytes(); }

  // Copies of all rows of `table`, in no particular order.
  [[nodiscard]] TableRows copy_rows(std::uint32_t table) const;
  [[nodiscard]] std::vector<TableRows> copy_rows() const;

 private:
  [[nodiscard]] TableRows reserved(std::uint32_t table) const;
  void append(TableRows& out, std::uint32_t table, std::uint64_t key, RowNumber row) const;

  const Schema* schema_;
  FlatIndex index_;
  RowArena arena_;
  std::vector<std::uint64_t> rows_;  // per table
};

}  // namespace embermesh

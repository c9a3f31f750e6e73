// The partition block: all rows of one partition as bytes. Grammar: docs/formats.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "table_config.h"

namespace embermesh {

// Rows of one table: keys[i] belongs to values[i * row_floats, (i + 1) * row_floats).
struct TableRows {
  std::vector<std::uint64_t> keys;
  std::vector<float> values;
};

// Brings the rows into ascending order of their unsigned keys, `row_floats` floats each.
[[nodiscard]] TableRows sorted_by_key(const TableRows& rows, std::size_t row_floats);

// Canonical: the same rows give the same bytes, whatever order they come in. One TableRows per
// table of the schema.
[[nodiscard]] std::string encode_partition(const Schema& schema, std::uint32_t partition,
                                           std::uint32_t partitions,
                                           const std::vector<TableRows>& tables);

// A verified block; points into the bytes it was read from.
class PartitionBlock {
 public:
  // Throws std::invalid_argument naming the check that failed, expected and actual: magic, version,
  // length, crc32c, partitions, tables, per table name, dim, optimizer and state size, that keys
  // ascend strictly and belong to the partition. Allocates nothing that the data can inflate.
  PartitionBlock(std::span<const std::byte> data, const Schema& schema, std::uint32_t partitions);

  [[nodiscard]] std::uint32_t partition() const noexcept { return partition_; }
  [[nodiscard]] std::size_t rows(std::size_t table) const noexcept { return tables_[table].rows; }

  [[nodiscard]] std::uint64_t key(std::size_t table, std::size_t i) const noexcept {
    std::uint64_t key = 0;
    std::memcpy(&key, tables_[table].keys.data() + i * sizeof key, sizeof key);
    return key;
  }

  // Copies weights and state of row i.
  void copy_row(std::size_t table, std::size_t i, float* row) const noexcept {
    const std::size_t bytes = tables_[table].row_bytes;
    std::memcpy(row, tables_[table].values.data() + i * bytes, bytes);
  }

 private:
  struct Table {
    std::size_t rows;
    std::size_t row_bytes;
    std::span<const std::byte> keys;
    std::span<const std::byte> values;
  };

  std::uint32_t partition_ = 0;
  std::vector<Table> tables_;
};

}  // namespace embermesh

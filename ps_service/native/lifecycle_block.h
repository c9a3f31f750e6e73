// The lifecycle block: when the rows of one partition were last seen and how much they were used,
// as bytes. Grammar: docs/formats.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "row_meta.h"
#include "table_config.h"

namespace embermesh {

// Metadata of one table's rows: records[i] belongs to keys[i].
struct TableRecords {
  std::vector<std::uint64_t> keys;
  std::vector<RowMetaCodec::Record> records;
};

// Canonical: the same rows give the same bytes, whatever order they come in. One TableRecords per
// table of the schema.
[[nodiscard]] std::string encode_lifecycle(const Schema& schema, std::uint32_t partition,
                                           std::uint32_t partitions,
                                           const std::vector<TableRecords>& tables);

// A verified block; points into the bytes it was read from.
class LifecycleBlock {
 public:
  // Throws std::invalid_argument naming the check that failed, expected and actual: magic, version,
  // length, crc32c, partitions, tables and their names. Allocates nothing that the data can
  // inflate.
  LifecycleBlock(std::span<const std::byte> data, const Schema& schema, std::uint32_t partitions);

  [[nodiscard]] std::uint32_t partition() const noexcept { return partition_; }
  [[nodiscard]] std::size_t rows(std::size_t table) const noexcept { return tables_[table].rows; }
  [[nodiscard]] std::uint64_t key(std::size_t table, std::size_t i) const noexcept;
  [[nodiscard]] RowMetaCodec::Record record(std::size_t table, std::size_t i) const noexcept;

 private:
  struct Table {
    std::size_t rows;
    std::span<const std::byte> keys;
    std::span<const std::byte> seen;
    std::span<const std::byte> usage;
  };

  std::uint32_t partition_ = 0;
  std::vector<Table> tables_;
};

}  // namespace embermesh

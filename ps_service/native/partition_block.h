// Blocks: the rows of one partition as bytes, all of them or those that changed. Grammar:
// docs/formats.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "byte_io.h"
#include "hash.h"
#include "table_config.h"

namespace embermesh {

// Rows of one table: keys[i] belongs to values[i * row_floats, (i + 1) * row_floats).
struct TableRows {
  std::vector<std::uint64_t> keys;
  std::vector<float> values;
};

// Brings the rows into ascending order of their unsigned keys, `row_floats` floats each.
[[nodiscard]] TableRows sorted_by_key(const TableRows& rows, std::size_t row_floats);

enum class BlockKind : std::uint8_t {
  kWhole,  // the partition has these rows and no others
  kDelta,  // these rows are new or changed, and some keys are removed
};

// How much of one table a block holds.
struct BlockSize {
  std::size_t rows = 0;
  std::size_t removed = 0;  // only in a delta
};

// Writes a block. The sizes are fixed first; then keys and rows may be filled in any order, so that
// rows are copied once, from where they live to where they end up.
class BlockBuilder {
 public:
  // `sizes`: one per table of the schema.
  BlockBuilder(const Schema& schema, BlockKind kind, std::uint32_t partition,
               std::uint32_t partitions, std::span<const BlockSize> sizes);

  // Keys and removed keys must ascend strictly.
  void set_key(std::size_t table, std::size_t i, std::uint64_t key) noexcept {
    std::memcpy(&out_[places_[table].keys + i * sizeof key], &key, sizeof key);
  }
  void set_row(std::size_t table, std::size_t i, const void* row) noexcept {
    const Place& place = places_[table];
    std::memcpy(&out_[place.rows + i * place.row_bytes], row, place.row_bytes);
  }
  void set_removed(std::size_t table, std::size_t i, std::uint64_t key) noexcept {
    std::memcpy(&out_[places_[table].removed + i * sizeof key], &key, sizeof key);
  }

  // The finished block.
  [[nodiscard]] std::string seal() &&;

 private:
  struct Place {
    std::size_t keys;
    std::size_t rows;
    std::size_t removed;
    std::size_t row_bytes;
  };

  std::string out_;
  std::vector<Place> places_;
};

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
  // ascend strictly and belong to the partition, that no key is both there and removed. Allocates
  // nothing that the data can inflate.
  PartitionBlock(std::span<const std::byte> data, const Schema& schema, std::uint32_t partitions);

  [[nodiscard]] BlockKind kind() const noexcept { return kind_; }
  [[nodiscard]] std::uint32_t partition() const noexcept { return partition_; }
  [[nodiscard]] std::size_t rows(std::size_t table) const noexcept { return tables_[table].rows; }
  [[nodiscard]] std::size_t removed(std::size_t table) const noexcept {
    return tables_[table].removed_rows;
  }

  [[nodiscard]] std::uint64_t key(std::size_t table, std::size_t i) const noexcept {
    return key_at(tables_[table].keys, i);
  }
  [[nodiscard]] std::uint64_t removed_key(std::size_t table, std::size_t i) const noexcept {
    return key_at(tables_[table].removed, i);
  }

  // Copies weights and state of row i.
  void copy_row(std::size_t table, std::size_t i, void* row) const noexcept {
    const std::size_t bytes = tables_[table].row_bytes;
    std::memcpy(row, tables_[table].values.data() + i * bytes, bytes);
  }

  // Whether the block has a row of this key, or (delta) names it as removed.
  [[nodiscard]] bool mentions(std::size_t table, std::uint64_t key) const noexcept;

 private:
  void check_tables(const ByteReader& reader, const Schema& schema,
                    Partitioning partition_of) const;
  [[nodiscard]] bool has_row(std::size_t table, std::uint64_t key) const noexcept;

  struct Table {
    std::uint64_t rows;
    std::uint64_t removed_rows;
    std::size_t row_bytes;
    std::span<const std::byte> keys;
    std::span<const std::byte> values;
    std::span<const std::byte> removed;
  };

  static std::uint64_t key_at(std::span<const std::byte> keys, std::size_t i) noexcept {
    std::uint64_t key = 0;
    std::memcpy(&key, keys.data() + i * sizeof key, sizeof key);
    return key;
  }

  BlockKind kind_ = BlockKind::kWhole;
  std::uint32_t partition_ = 0;
  std::vector<Table> tables_;
};

}  // namespace embermesh

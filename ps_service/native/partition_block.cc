#include "partition_block.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace embermesh {
namespace {

constexpr std::uint64_t kWholeMagic = 0x00545241'50424D45ULL;  // "EMBPART\0"
constexpr std::uint64_t kDeltaMagic = 0x00544C44'50424D45ULL;  // "EMBPDLT\0"
constexpr std::uint32_t kVersion = 2;
constexpr std::uint32_t kFp32Version = 1;  // its headers name no weight type

constexpr std::size_t kKeyBytes = sizeof(std::uint64_t);

// Refuses keys that do not ascend strictly or belong elsewhere. `key(i)` is the i-th of `count`.
template <class Key>
void check_keys(const ByteReader& reader, const Schema& schema, std::size_t table,
                std::uint32_t partition, Partitioning partition_of, std::size_t count,
                const Key& key) {
  const auto refuse = [&](std::size_t i, const std::string& why) {
    reader.refuse("table '" + schema.table(table).name + "': key " + std::to_string(key(i)) + why);
  };
  for (std::size_t i = 0; i < count; ++i) {
    if (i > 0 && key(i - 1) >= key(i)) refuse(i, " is out of order");
    const std::uint32_t actual = partition_of(row_hash(schema.salt(table), key(i)));
    if (actual != partition) {
      refuse(i, " belongs to partition " + std::to_string(actual) + ", not " +
                    std::to_string(partition));
    }
  }
}

// Whether `wanted` is among `count` ascending keys; key(i) is the i-th.
template <class Key>
bool contains(std::size_t count, std::uint64_t wanted, const Key& key) noexcept {
  std::size_t low = 0;
  std::size_t high = count;
  while (low < high) {
    const std::size_t middle = low + (high - low) / 2;
    if (key(middle) < wanted) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < count && key(low) == wanted;
}

}  // namespace

TableRows sorted_by_key(const TableRows& rows, std::size_t row_floats) {
  std::vector<std::size_t> order(rows.keys.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t i) { return rows.keys[i]; });
  TableRows sorted;
  sorted.keys.reserve(rows.keys.size());
  sorted.values.reserve(rows.values.size());
  for (const std::size_t i : order) {
    const auto row = std::span(rows.values).subspan(i * row_floats, row_floats);
    sorted.keys.push_back(rows.keys[i]);
    sorted.values.insert(sorted.values.end(), row.begin(), row.end());
  }
  return sorted;
}

BlockBuilder::BlockBuilder(const Schema& schema, BlockKind kind, std::uint32_t partition,
                           std::uint32_t partitions, std::span<const BlockSize> sizes) {
  const bool is_delta = kind == BlockKind::kDelta;
  ByteWriter header;
  header.number(is_delta ? kDeltaMagic : kWholeMagic);
  header.number(kVersion);
  header.number(partition);
  header.number(partitions);
  header.number(static_cast<std::uint32_t>(schema.size()));
  for (std::size_t id = 0; id < schema.size(); ++id) {
    const TableConfig& config = schema.table(id);
    header.text(config.name);
    header.text(config.optimizer().name());
    header.number(static_cast<std::uint32_t>(config.dim));
    header.number(static_cast<std::uint32_t>(config.state_floats()));
    header.text(weight_type_name(config.weights));
    header.number(static_cast<std::uint64_t>(sizes[id].rows));
    if (is_delta) header.number(static_cast<std::uint64_t>(sizes[id].removed));
  }
  out_ = std::move(header).unsealed();
  std::size_t end = out_.size();
  places_.reserve(schema.size());
  for (std::size_t id = 0; id < schema.size(); ++id) {
    Place place{end, 0, 0, schema.row_bytes(id)};
    place.rows = place.keys + sizes[id].rows * kKeyBytes;
    place.removed = place.rows + sizes[id].rows * place.row_bytes;
    end = place.removed + sizes[id].removed * kKeyBytes;
    places_.push_back(place);
  }
  out_.reserve(end + sizeof(std::uint32_t));
  out_.resize(end);
}

std::string BlockBuilder::seal() && { return ByteWriter(std::move(out_)).seal(); }

std::string encode_partition(const Schema& schema, std::uint32_t partition,
                             std::uint32_t partitions, const std::vector<TableRows>& tables) {
  std::vector<BlockSize> sizes;
  sizes.reserve(tables.size());
  for (const TableRows& table : tables) sizes.push_back(BlockSize{table.keys.size(), 0});
  BlockBuilder block(schema, BlockKind::kWhole, partition, partitions, sizes);
  std::vector<std::size_t> order;
  for (std::size_t id = 0; id < tables.size(); ++id) {
    const TableRows& rows = tables[id];
    order.resize(rows.keys.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::sort(order, {}, [&](std::size_t i) { return rows.keys[i]; });
    for (std::size_t i = 0; i < order.size(); ++i) {
      block.set_key(id, i, rows.keys[order[i]]);
      block.set_row(id, i, rows.values.data() + order[i] * schema.table(id).row_floats());
    }
  }
  return std::move(block).seal();
}

PartitionBlock::PartitionBlock(std::span<const std::byte> data, const Schema& schema,
                               std::uint32_t partitions) {
  ByteReader reader(data, "partition block");
  const auto magic = ByteReader(data, "partition block").number<std::uint64_t>("magic");
  if (magic == kDeltaMagic) {
    kind_ = BlockKind::kDelta;
  } else {
    reader.check("magic", kWholeMagic, magic);
  }
  reader.unseal();
  static_cast<void>(reader.number<std::uint64_t>("magic"));
  const auto version = reader.number<std::uint32_t>("version");
  if (version != kFp32Version) reader.check("version", kVersion, version);
  partition_ = reader.number<std::uint32_t>("partition");
  reader.check("partitions", partitions, reader.number<std::uint32_t>("partitions"));
  if (partition_ >= partitions)
    reader.refuse("partition " + std::to_string(partition_) + " is not below " +
                  std::to_string(partitions));
  reader.check("table count", static_cast<std::uint32_t>(schema.size()),
               reader.number<std::uint32_t>("table count"));
  for (std::size_t id = 0; id < schema.size(); ++id) {
    const TableConfig& config = schema.table(id);
    const std::string where = "table " + std::to_string(id) + " ";
    reader.check(where + "name", config.name, reader.text("name"));
    reader.check(where + "optimizer", std::string(config.optimizer().name()),
                 reader.identifier("optimizer"));
    reader.check(where + "dim", static_cast<std::uint32_t>(config.dim),
                 reader.number<std::uint32_t>("dim"));
    reader.check(where + "state_floats", static_cast<std::uint32_t>(config.state_floats()),
                 reader.number<std::uint32_t>("state_floats"));
    const std::string weights = version == kFp32Version ? "fp32" : reader.identifier("weights");
    reader.check(where + "weights", std::string(weight_type_name(config.weights)), weights);
    const auto rows = reader.number<std::uint64_t>("row count");
    const auto removed =
        kind_ == BlockKind::kDelta ? reader.number<std::uint64_t>("removed count") : 0;
    tables_.push_back(Table{rows, removed, schema.row_bytes(id), {}, {}, {}});
  }
  for (Table& table : tables_) {
    table.keys = reader.array(table.rows, kKeyBytes, "keys");
    table.values = reader.array(table.rows, table.row_bytes, "rows");
    table.removed = reader.array(table.removed_rows, kKeyBytes, "removed keys");
  }
  reader.check("bytes after the last row", std::size_t{0}, reader.left());
  check_tables(reader, schema, Partitioning(partitions));
}

void PartitionBlock::check_tables(const ByteReader& reader, const Schema& schema,
                                  Partitioning partition_of) const {
  for (std::size_t id = 0; id < tables_.size(); ++id) {
    check_keys(reader, schema, id, partition_, partition_of, rows(id),
               [&](std::size_t i) { return key(id, i); });
    check_keys(reader, schema, id, partition_, partition_of, removed(id),
               [&](std::size_t i) { return removed_key(id, i); });
    for (std::size_t i = 0; i < removed(id); ++i) {
      if (has_row(id, removed_key(id, i))) {
        reader.refuse("table '" + schema.table(id).name + "': key " +
                      std::to_string(removed_key(id, i)) + " is both there and removed");
      }
    }
  }
}

bool PartitionBlock::has_row(std::size_t table, std::uint64_t wanted) const noexcept {
  return contains(rows(table), wanted, [&](std::size_t i) { return key(table, i); });
}

bool PartitionBlock::mentions(std::size_t table, std::uint64_t wanted) const noexcept {
  const auto removed_at = [&](std::size_t i) { return removed_key(table, i); };
  return has_row(table, wanted) || contains(removed(table), wanted, removed_at);
}

}  // namespace embermesh

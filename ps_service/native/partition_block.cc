#include "partition_block.h"

#include <algorithm>
#include <numeric>

#include "byte_io.h"
#include "hash.h"

namespace embermesh {
namespace {

constexpr std::uint64_t kMagic = 0x00545241'50424D45ULL;  // "EMBPART\0"
constexpr std::uint32_t kVersion = 2;
constexpr std::uint32_t kFp32Version = 1;  // its headers name no weight type

void check_keys(const ByteReader& reader, const PartitionBlock& block, const Schema& schema,
                std::size_t table, Partitioning partition_of) {
  for (std::size_t i = 0; i < block.rows(table); ++i) {
    const std::uint64_t key = block.key(table, i);
    const std::string where =
        "table '" + schema.table(table).name + "': key " + std::to_string(key);
    if (i > 0 && block.key(table, i - 1) >= key) reader.refuse(where + " is out of order");
    const std::uint32_t actual = partition_of(row_hash(schema.salt(table), key));
    if (actual != block.partition()) {
      reader.refuse(where + " belongs to partition " + std::to_string(actual) + ", not " +
                    std::to_string(block.partition()));
    }
  }
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

std::string encode_partition(const Schema& schema, std::uint32_t partition,
                             std::uint32_t partitions, const std::vector<TableRows>& tables) {
  ByteWriter out;
  std::size_t bytes = 0;
  for (const TableRows& table : tables) {
    bytes += table.keys.size() * sizeof(std::uint64_t) + table.values.size() * sizeof(float);
  }
  out.reserve(bytes + 1024 * tables.size());
  out.number(kMagic);
  out.number(kVersion);
  out.number(partition);
  out.number(partitions);
  out.number(static_cast<std::uint32_t>(tables.size()));
  for (std::size_t id = 0; id < tables.size(); ++id) {
    const TableConfig& config = schema.table(id);
    out.text(config.name);
    out.text(config.optimizer().name());
    out.number(static_cast<std::uint32_t>(config.dim));
    out.number(static_cast<std::uint32_t>(config.state_floats()));
    out.text(weight_type_name(config.weights));
    out.number(static_cast<std::uint64_t>(tables[id].keys.size()));
  }
  for (std::size_t id = 0; id < tables.size(); ++id) {
    const TableRows rows = sorted_by_key(tables[id], schema.table(id).row_floats());
    out.bytes(rows.keys.data(), rows.keys.size() * sizeof(std::uint64_t));
    out.bytes(rows.values.data(), rows.values.size() * sizeof(float));
  }
  return std::move(out).seal();
}

PartitionBlock::PartitionBlock(std::span<const std::byte> data, const Schema& schema,
                               std::uint32_t partitions) {
  ByteReader reader(data, "partition block");
  reader.check("magic", kMagic, ByteReader(data, "partition block").number<std::uint64_t>("magic"));
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
    tables_.push_back(
        Table{reader.number<std::uint64_t>("row count"), schema.row_bytes(id), {}, {}});
  }
  for (Table& table : tables_) {
    table.keys = reader.array(table.rows, sizeof(std::uint64_t), "keys");
    table.values = reader.array(table.rows, table.row_bytes, "rows");
  }
  reader.check("bytes after the last row", std::size_t{0}, reader.left());
  for (std::size_t id = 0; id < tables_.size(); ++id) {
    check_keys(reader, *this, schema, id, Partitioning(partitions));
  }
}

}  // namespace embermesh

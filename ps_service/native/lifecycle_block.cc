#include "lifecycle_block.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "byte_io.h"

namespace embermesh {
namespace {

constexpr std::uint64_t kMagic = 0x00454649'4C424D45ULL;  // "EMBLIFE\0"
constexpr std::uint32_t kVersion = 1;

template <class T>
T item(std::span<const std::byte> items, std::size_t i) noexcept {
  T value;
  std::memcpy(&value, items.data() + i * sizeof value, sizeof value);
  return value;
}

}  // namespace

std::string encode_lifecycle(const Schema& schema, std::uint32_t partition,
                             std::uint32_t partitions, const std::vector<TableRecords>& tables) {
  ByteWriter out;
  out.number(kMagic);
  out.number(kVersion);
  out.number(partition);
  out.number(partitions);
  out.number(static_cast<std::uint32_t>(tables.size()));
  for (std::size_t id = 0; id < tables.size(); ++id) {
    out.text(schema.table(id).name);
    out.number(static_cast<std::uint64_t>(tables[id].keys.size()));
  }
  for (const TableRecords& table : tables) {
    std::vector<std::size_t> order(table.keys.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::sort(order, {}, [&](std::size_t i) { return table.keys[i]; });
    for (const std::size_t i : order) out.number(table.keys[i]);
    for (const std::size_t i : order) out.number(table.records[i].seen);
    for (const std::size_t i : order) out.number(table.records[i].usage);
  }
  return std::move(out).seal();
}

LifecycleBlock::LifecycleBlock(std::span<const std::byte> data, const Schema& schema,
                               std::uint32_t partitions) {
  ByteReader reader(data, "lifecycle block");
  reader.check("magic", kMagic, ByteReader(data, "lifecycle block").number<std::uint64_t>("magic"));
  reader.unseal();
  static_cast<void>(reader.number<std::uint64_t>("magic"));
  reader.check("version", kVersion, reader.number<std::uint32_t>("version"));
  partition_ = reader.number<std::uint32_t>("partition");
  reader.check("partitions", partitions, reader.number<std::uint32_t>("partitions"));
  if (partition_ >= partitions) {
    reader.refuse("partition " + std::to_string(partition_) + " is not below " +
                  std::to_string(partitions));
  }
  reader.check("table count", static_cast<std::uint32_t>(schema.size()),
               reader.number<std::uint32_t>("table count"));
  for (std::size_t id = 0; id < schema.size(); ++id) {
    reader.check("table " + std::to_string(id) + " name", schema.table(id).name,
                 reader.text("name"));
    tables_.push_back({reader.number<std::uint64_t>("row count"), {}, {}, {}});
  }
  for (Table& table : tables_) {
    table.keys = reader.array(table.rows, sizeof(std::uint64_t), "keys");
    table.seen = reader.array(table.rows, sizeof(std::uint32_t), "seen");
    table.usage = reader.array(table.rows, sizeof(float), "usage");
  }
  reader.check("bytes after the last row", std::size_t{0}, reader.left());
}

std::uint64_t LifecycleBlock::key(std::size_t table, std::size_t i) const noexcept {
  return item<std::uint64_t>(tables_[table].keys, i);
}

RowMetaCodec::Record LifecycleBlock::record(std::size_t table, std::size_t i) const noexcept {
  return {item<std::uint32_t>(tables_[table].seen, i), item<float>(tables_[table].usage, i)};
}

}  // namespace embermesh

#include "row_store.h"

#include <algorithm>

#include "hash.h"

namespace embermesh {

RowStore::RowStore(const Schema& schema, RowMemory& memory) : schema_(&schema) {
  tables_.reserve(schema.size());
  for (std::size_t table = 0; table < schema.size(); ++table) {
    tables_.push_back(Table{FlatIndex(memory.index_pool()), memory.arena_of(table)});
  }
  arenas_.reserve(memory.arenas());
  for (std::size_t a = 0; a < memory.arenas(); ++a) arenas_.push_back(memory.make_arena(a));
}

float* RowStore::add(std::uint32_t table, std::uint64_t hash) {
  Table& target = tables_[table];
  target.index.reserve_one();
  RowArena& arena = arenas_[target.arena];
  const RowNumber row = arena.allocate();
  target.index.insert(hash, row);
  return arena.row(row);
}

void RowStore::erase(std::uint32_t table, Slot* slot) noexcept {
  arenas_[tables_[table].arena].free(slot->row);
  tables_[table].index.erase(slot);
}

bool RowStore::is_sparse() const noexcept {
  return std::ranges::any_of(arenas_, &RowArena::is_sparse) ||
         std::ranges::any_of(tables_, [](const Table& table) { return table.index.is_sparse(); });
}

bool RowStore::compact() noexcept {
  constexpr std::size_t kSliceBuckets = 1024;  // 64 KiB of index: a fraction of a millisecond
  Table& table = tables_[pack_table_];
  if (pack_bucket_ == 0) table.index.shrink();
  RowArena& arena = arenas_[table.arena];
  table.index.for_each(pack_bucket_, kSliceBuckets, [&](Slot& slot) { arena.pack(slot.row); });
  pack_bucket_ += kSliceBuckets;
  if (pack_bucket_ < table.index.buckets()) return true;
  pack_bucket_ = 0;
  pack_table_ = (pack_table_ + 1) % tables_.size();
  return pack_table_ != 0;
}

std::size_t RowStore::bytes() const noexcept {
  std::size_t bytes = 0;
  for (const Table& table : tables_) bytes += table.index.bytes();
  for (const RowArena& arena : arenas_) bytes += arena.bytes();
  return bytes;
}

TableRows RowStore::copy_rows(std::uint32_t table) const {
  const FlatIndex& index = tables_[table].index;
  const std::size_t floats = schema_->table(table).row_floats();
  TableRows out;
  out.keys.reserve(index.size());
  out.values.reserve(index.size() * floats);
  index.for_each([&](const Slot& slot) {
    const float* values = arena(table).row(slot.row);
    out.keys.push_back(key_of(schema_->salt(table), slot.hash));
    out.values.insert(out.values.end(), values, values + floats);
  });
  return out;
}

std::vector<TableRows> RowStore::copy_rows() const {
  std::vector<TableRows> out;
  out.reserve(schema_->size());
  for (std::uint32_t table = 0; table < schema_->size(); ++table) out.push_back(copy_rows(table));
  return out;
}

}  // namespace embermesh

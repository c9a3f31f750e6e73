#include "row_store.h"

#include <algorithm>

#include "hash.h"

namespace embermesh {

RowStore::RowStore(const Schema& schema, RowMemory& memory)
    : schema_(&schema), log_(schema.size(), memory.arenas()) {
  tables_.reserve(schema.size());
  for (std::size_t table = 0; table < schema.size(); ++table) {
    tables_.push_back(
        Table{FlatIndex(memory.index_pool(), schema.evicts(table)), memory.arena_of(table)});
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
  log_.added({target.arena, row});
  return arena.row(row);
}

void RowStore::erase(std::uint32_t table, Slot slot) noexcept {
  if (log_.is_watching()) {
    log_.remove({table, key_of(schema_->salt(table), slot.hash())}, place(table, slot.row()),
                arena(table).row(slot.row()), schema_->row_bytes(table));
  }
  arenas_[tables_[table].arena].free(slot.row());
  tables_[table].index.erase(slot);
}

bool RowStore::is_sparse() const noexcept {
  return std::ranges::any_of(arenas_, &RowArena::is_sparse) ||
         std::ranges::any_of(tables_, [](const Table& table) { return table.index.is_sparse(); });
}

bool RowStore::compact() noexcept {
  if (log_.preserving()) return false;  // another time: a snapshot knows rows by their numbers
  constexpr std::size_t kSliceBuckets = 1024;  // 64 KiB of index: a fraction of a millisecond
  Table& table = tables_[pack_table_];
  if (pack_bucket_ == 0) table.index.shrink();
  RowArena& arena = arenas_[table.arena];
  table.index.for_each(pack_bucket_, kSliceBuckets, [&](Slot slot) {
    const RowNumber before = slot.row();
    arena.pack(slot.row());
    if (slot.row() != before) log_.moved({table.arena, before}, slot.row());
  });
  pack_bucket_ += kSliceBuckets;
  if (pack_bucket_ < table.index.buckets()) return true;
  pack_bucket_ = 0;
  pack_table_ = (pack_table_ + 1) % tables_.size();
  return pack_table_ != 0;
}

std::size_t RowStore::apply(const PartitionBlock& block) {
  std::size_t rows = 0;
  for (std::uint32_t table = 0; table < tables_.size(); ++table) {
    const std::uint64_t salt = schema_->salt(table);
    for (std::size_t i = 0; i < block.removed(table); ++i) {
      const Slot slot = index(table).find(row_hash(salt, block.removed_key(table, i)));
      if (slot) erase(table, slot);
    }
    for (std::size_t i = 0; i < block.rows(table); ++i, ++rows) {
      const std::uint64_t hash = row_hash(salt, block.key(table, i));
      const Slot slot = index(table).find(hash);
      block.copy_row(table, i, !slot ? add(table, hash) : writable_row(table, slot));
    }
  }
  return rows;
}

void RowStore::turn_log(std::uint64_t now) {
  std::vector<std::uint64_t> rows;
  rows.reserve(tables_.size());
  for (const Table& table : tables_) rows.push_back(table.index.size());
  std::vector<RowNumber> bounds;
  bounds.reserve(arenas_.size());
  for (const RowArena& arena : arenas_) bounds.push_back(arena.row_bound());
  log_.turn(now, rows, bounds);
}

void RowStore::touch(std::uint32_t table, Slot slot) {
  log_.touch({table, key_of(schema_->salt(table), slot.hash())}, place(table, slot.row()),
             arena(table).row(slot.row()), schema_->row_bytes(table));
}

void RowStore::touch_all() {
  for_each(
      [this](std::uint32_t table, Slot slot) { static_cast<void>(writable_row(table, slot)); });
}

std::size_t RowStore::size() const noexcept {
  std::size_t rows = 0;
  for (const Table& table : tables_) rows += table.index.size();
  return rows;
}

std::size_t RowStore::bytes() const noexcept {
  std::size_t bytes = log_.bytes();
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
  index.for_each([&](Slot slot) {
    const float* values = arena(table).row(slot.row());
    out.keys.push_back(key_of(schema_->salt(table), slot.hash()));
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

#include "row_store.h"

#include <algorithm>
#include <string>

#include "hash.h"

namespace embermesh {

RowStore::RowStore(const Schema& schema, RowMemory& memory, std::uint32_t partition)
    : index_(memory.index_pool(), memory.names(), schema.evicts()),
      arena_of_(memory.arena_of().data()),
      log_(schema.size(), memory.arenas()),
      schema_(&schema),
      rows_(schema.size(), 0),
      partition_(partition) {
  arenas_.reserve(memory.arenas());
  for (std::size_t a = 0; a < memory.arenas(); ++a) arenas_.push_back(memory.make_arena(a));
}

float* RowStore::add(Slot next, std::uint32_t table, std::uint64_t hash) {
  RowArena& arena = arenas_[arena_of_[table]];
  if (arena.is_full()) refuse_row(table);
  const RowNumber row = arena.allocate();
  index_.fill(next, table, hash, row);
  ++rows_[table];
  log_.added({arena_of_[table], row});
  return arena.row(row);
}

void RowStore::refuse_row(std::uint32_t table) const {
  throw TooManyRows("rows: partition " + std::to_string(partition_) + " has no room for a row of " +
                    "table '" + schema_->table(table).name + "': with " +
                    std::to_string(schema_->size()) + " tables a partition holds at most " +
                    std::to_string(arenas_[arena_of_[table]].most_rows()) + " rows of " +
                    std::to_string(schema_->row_bytes(table)) +
                    " bytes; more partitions or eviction make room");
}

void RowStore::erase(Slot slot) noexcept {
  const std::uint32_t table = slot.table();
  if (log_.is_watching()) {
    log_.remove({table, key_of(schema_->salt(table), slot.hash())}, place(table, slot.row()),
                row(slot), schema_->row_bytes(table));
  }
  arenas_[arena_of_[table]].free(slot.row());
  --rows_[table];
  index_.erase(slot);
}

bool RowStore::is_sparse() const noexcept {
  return index_.is_sparse() || std::ranges::any_of(arenas_, &RowArena::is_sparse);
}

bool RowStore::compact() noexcept {
  if (log_.preserving()) return false;  // another time: a snapshot knows rows by their numbers
  constexpr std::size_t kSliceBuckets = 1024;  // 64 KiB of index: a fraction of a millisecond
  if (pack_bucket_ == 0) index_.shrink();
  index_.for_each(pack_bucket_, kSliceBuckets, [&](Slot slot) {
    const std::uint32_t arena = arena_of_[slot.table()];
    const RowNumber before = slot.row();
    RowNumber row = before;
    arenas_[arena].pack(row);
    if (row == before) return;
    slot.set_row(row);
    log_.moved({arena, before}, row);
  });
  pack_bucket_ += kSliceBuckets;
  if (pack_bucket_ < index_.buckets()) return true;
  pack_bucket_ = 0;
  return false;
}

std::size_t RowStore::apply(const PartitionBlock& block) {
  std::size_t rows = 0;
  for (std::uint32_t table = 0; table < schema_->size(); ++table) {
    const std::uint64_t salt = schema_->salt(table);
    for (std::size_t i = 0; i < block.removed(table); ++i) {
      const Slot slot = find(table, row_hash(salt, block.removed_key(table, i)));
      if (slot) erase(slot);
    }
    for (std::size_t i = 0; i < block.rows(table); ++i, ++rows) {
      const std::uint64_t hash = row_hash(salt, block.key(table, i));
      const Slot slot = find_or_next(table, hash);
      block.copy_row(table, i,
                     slot.is_empty() ? add(slot, table, hash) : writable_row(table, slot));
    }
  }
  return rows;
}

void RowStore::turn_log(std::uint64_t now) {
  std::vector<RowNumber> bounds;
  bounds.reserve(arenas_.size());
  for (const RowArena& arena : arenas_) bounds.push_back(arena.row_bound());
  log_.turn(now, rows_, bounds);
}

void RowStore::touch(Slot slot) {
  const std::uint32_t table = slot.table();
  log_.touch({table, key_of(schema_->salt(table), slot.hash())}, place(table, slot.row()),
             row(slot), schema_->row_bytes(table));
}

void RowStore::touch_all() {
  index_.for_each([this](Slot slot) { static_cast<void>(writable_row(slot.table(), slot)); });
}

std::size_t RowStore::bytes() const noexcept {
  std::size_t bytes = log_.bytes() + index_.bytes();
  for (const RowArena& arena : arenas_) bytes += arena.bytes();
  return bytes;
}

TableRows RowStore::room_for(std::uint32_t table) const {
  TableRows out;
  out.keys.reserve(rows(table));
  out.values.reserve(rows(table) * schema_->table(table).row_floats());
  return out;
}

void RowStore::copy_row(Slot slot, TableRows& out) const {
  const std::uint32_t table = slot.table();
  const float* values = row(slot);
  out.keys.push_back(key_of(schema_->salt(table), slot.hash()));
  out.values.insert(out.values.end(), values, values + schema_->table(table).row_floats());
}

TableRows RowStore::copy_rows(std::uint32_t table) const {
  TableRows out = room_for(table);
  index_.for_each([&](Slot slot) {
    if (slot.table() == table) copy_row(slot, out);
  });
  return out;
}

std::vector<TableRows> RowStore::copy_rows() const {
  std::vector<TableRows> out;
  out.reserve(schema_->size());
  for (std::uint32_t table = 0; table < schema_->size(); ++table) out.push_back(room_for(table));
  index_.for_each([&](Slot slot) { copy_row(slot, out[slot.table()]); });
  return out;
}

}  // namespace embermesh

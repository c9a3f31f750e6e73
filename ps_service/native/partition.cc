#include "partition.h"

#include <utility>

#include "hash.h"

namespace embermesh {

void Partition::count_rows(std::span<std::uint64_t> rows) const {
  const std::scoped_lock lock(mutex_);
  for (std::size_t table = 0; table < rows.size(); ++table) rows[table] += store_.rows(table);
}

std::size_t Partition::bytes() const {
  const std::scoped_lock lock(mutex_);
  return store_.bytes() + life_.bytes();
}

TableRows Partition::copy_rows(std::uint32_t table) const {
  const std::scoped_lock lock(mutex_);
  return store_.copy_rows(table);
}

std::vector<TableRows> Partition::copy_rows() const {
  const std::scoped_lock lock(mutex_);
  return store_.copy_rows();
}

void Partition::compact(bool always) noexcept {
  for (bool has_more = true; has_more; always = true) {
    const std::scoped_lock lock(mutex_);
    has_more = (always || store_.is_sparse()) && store_.compact();
  }
}

void Partition::replace(RowStore&& content) {
  RowStore old = std::move(content);  // freed after the lock is gone
  const std::scoped_lock lock(mutex_);
  follow_snapshots();
  store_.touch_all();
  std::swap(store_, old);
  std::swap(store_.log(), old.log());
  store_.log().replaced();
  life_.replaced();
}

std::size_t Partition::change(const PartitionBlock& delta) {
  const std::scoped_lock lock(mutex_);
  follow_snapshots();
  life_.replaced();
  return store_.apply(delta);
}

std::size_t Partition::evict(Sweep& sweep) {
  const std::scoped_lock lock(mutex_);
  std::size_t removed = 0;
  for (const Sweep::Victim& victim : sweep.slice(store_)) {
    const Slot slot = store_.find(victim.table, victim.hash);
    if (!slot) continue;  // named twice
    store_.erase(slot);
    life_.evicted(victim.table, victim.hash, victim.reason);
    ++removed;
  }
  return removed;
}

void Partition::add_stats(std::span<TableStats> tables) const {
  const std::scoped_lock lock(mutex_);
  for (std::size_t table = 0; table < tables.size(); ++table) {
    tables[table].rows += store_.rows(table);
    tables[table].tally += life_.tally(table);
    tables[table].gate_bytes += life_.gate_bytes(table);
  }
}

void Partition::add_stats(IndexStats& stats) const {
  const std::scoped_lock lock(mutex_);
  const FlatIndex& index = store_.index();
  stats.rows += index.size();
  stats.slots += index.capacity();
  index.count_probes(stats.probes);
  if (index.size() > 0) ++stats.sampled;
}

std::vector<TableRecords> Partition::copy_records(std::uint32_t now) const {
  std::vector<TableRecords> tables(schema_->size());
  const std::scoped_lock lock(mutex_);
  for (std::uint32_t id = 0; id < tables.size(); ++id) {
    if (!schema_->evicts(id)) continue;
    tables[id].keys.reserve(store_.rows(id));
    tables[id].records.reserve(store_.rows(id));
  }
  if (!schema_->evicts()) return tables;
  store_.index().for_each([&](Slot slot) {
    const std::uint32_t id = slot.table();
    if (!schema_->evicts(id)) return;
    const RowMetaCodec& codec = schema_->table(id).rows.eviction->meta();
    tables[id].keys.push_back(key_of(schema_->salt(id), slot.hash()));
    tables[id].records.push_back(codec.unpack(slot.meta(), now));
  });
  return tables;
}

std::size_t Partition::set_records(const LifecycleBlock& block) {
  std::size_t set = 0;
  for (std::uint32_t id = 0; id < schema_->size(); ++id) {
    if (!schema_->evicts(id)) continue;
    const RowMetaCodec& codec = schema_->table(id).rows.eviction->meta();
    const std::scoped_lock lock(mutex_);
    for (std::size_t i = 0; i < block.rows(id); ++i) {
      const Slot slot = store_.find(id, row_hash(schema_->salt(id), block.key(id, i)));
      if (!slot) continue;
      slot.meta() = codec.pack(block.record(id, i));
      ++set;
    }
  }
  return set;
}

TombstoneLog::Content Partition::drain_tombstones() {
  const std::scoped_lock lock(mutex_);
  return life_.drain_tombstones();
}

}  // namespace embermesh

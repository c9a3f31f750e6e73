#include "sweep.h"

#include <algorithm>

#include "simd.h"

namespace embermesh {

Sweep::Sweep(const Schema& schema, std::uint32_t partitions, std::uint32_t now)
    : schema_(&schema), partitions_(partitions), now_(now), tables_(schema.size()) {
  if (!schema.evicts()) table_ = static_cast<std::uint32_t>(schema.size());
  for (std::size_t table = 0; table < tables_.size(); ++table) {
    reads_norms_ = reads_norms_ || policy(table).has_norm();
  }
}

std::span<const Sweep::Victim> Sweep::slice(RowStore& store) {
  for (const Victim& victim : victims_) tables_[victim.table].leaving = 0;
  victims_.clear();
  if (!is_begun_) begin(store);
  if (!is_scanned_) {
    scan(store);
  } else {
    trim(store);
  }
  return victims_;
}

void Sweep::begin(const RowStore& store) {
  is_begun_ = true;
  buckets_ = store.index().buckets();
  bucket_ = buckets_ + store.index().wrapped();
  for (std::size_t id = 0; id < tables_.size(); ++id) {
    if (!schema_->evicts(id)) continue;
    Table& table = tables_[id];
    table.most = policy(id).most_rows(partitions_);
    table.fewest = policy(id).fewest_rows(partitions_);
    table.ranks_rows = store.rows(id) > table.most;
    if (table.ranks_rows) table.candidates.reserve(store.rows(id));
  }
}

// From the last bucket to the first, because erasing moves entries to earlier buckets: those are
// seen again instead of never. What would move from the first buckets to the last ones is looked at
// before all.
void Sweep::scan(RowStore& store) {
  const FlatIndex& index = store.index();
  if (index.buckets() != buckets_) {  // grown or shrunk: every entry's place changed by this ratio
    const std::size_t scaled = bucket_ * index.buckets() / std::max<std::size_t>(buckets_, 1);
    buckets_ = index.buckets();
    bucket_ = std::min(buckets_, scaled + 2);
  }
  const std::size_t rows = reads_norms_ ? kRows / 8 : kRows;
  const std::size_t end = bucket_ > buckets_ ? bucket_ - buckets_ : bucket_;
  const std::size_t buckets = std::min(rows / 4, end);  // four slots: rows with metadata
  const std::size_t first = end - buckets;
  bucket_ -= buckets;
  if (reads_norms_) {
    index.for_each(first, buckets, [&](Slot slot) {
      if (!policy(slot.table()).has_norm()) return;
      prefetch_row(store.row(slot), schema_->shape(slot.table()).weight_bytes);
    });
  }
  index.for_each(first, buckets, [&](Slot slot) {
    if (schema_->evicts(slot.table())) look_at(store, slot);
  });
  if (bucket_ > 0) return;
  is_scanned_ = true;
  for (std::size_t id = 0; id < tables_.size(); ++id) {
    Table& table = tables_[id];
    const std::uint64_t left = store.rows(id) - table.leaving;
    if (table.ranks_rows && left > table.most) table.excess = left - table.most;
  }
}

void Sweep::look_at(const RowStore& store, Slot slot) {
  const std::uint32_t id = slot.table();
  const EvictionPolicy& rules = policy(id);
  Table& table = tables_[id];
  if (now_ != 0 && !rules.meta().was_seen(slot.meta())) {
    slot.meta() = rules.meta().touch(slot.meta(), now_, 0.0, 0);
  }
  const TableShape& shape = schema_->shape(id);
  const float* weights = nullptr;
  if (rules.has_norm()) {
    widened_.resize(shape.dim);
    widen_weights(shape.weights, store.row(slot), shape.dim, widened_.data());
    weights = widened_.data();
  }
  const auto reason = rules.verdict(slot.meta(), now_, weights, shape.dim);
  if (reason && store.rows(id) - table.leaving > table.fewest) {
    victims_.push_back({slot.hash(), id, *reason});
    ++table.leaving;
  } else if (table.ranks_rows) {
    table.candidates.push_back({rules.rank(slot.meta(), now_), slot.hash()});
  }
}

void Sweep::think() {
  if (!is_scanned_) return;
  while (!done() && trimmed_ == tables_[table_].excess) {
    tables_[table_].candidates = {};
    trimmed_ = 0;
    ++table_;
  }
  if (done() || trimmed_ > 0) return;
  // Lowest rank first; of equal ones the hash decides, so that equal contents lose equal rows. A
  // row may be there twice: removing others moved it to a bucket that the scan had yet to see.
  Table& table = tables_[table_];
  std::ranges::sort(table.candidates);
  const auto end = std::unique(table.candidates.begin(), table.candidates.end());
  table.candidates.erase(end, table.candidates.end());
  table.excess = std::min<std::uint64_t>(table.excess, table.candidates.size());
  table.candidates.resize(table.excess);
}

void Sweep::trim(const RowStore& store) {
  const Table& table = tables_[table_];
  const std::size_t end = std::min<std::size_t>(trimmed_ + kRows / 4, table.excess);
  for (; trimmed_ < end; ++trimmed_) {
    const Candidate& candidate = table.candidates[trimmed_];
    const Slot slot = store.find(table_, candidate.hash);
    if (slot && policy(table_).rank(slot.meta(), now_) == candidate.rank) {
      victims_.push_back({candidate.hash, table_, policy(table_).over_limit()});
    }
  }
}

}  // namespace embermesh

// The side of a partition that snapshots see.
#include <algorithm>
#include <mutex>
#include <new>
#include <utility>

#include "hash.h"
#include "partition.h"
#include "partition_block.h"

namespace embermesh {

void Partition::count_snapshot_rows(std::span<std::uint64_t> rows) {
  const std::scoped_lock lock(mutex_);
  follow_snapshots();
  const auto at_begin = store_.log().rows_at_begin();
  for (std::size_t table = 0; table < rows.size(); ++table) rows[table] += at_begin[table];
}

PartitionCut Partition::begin_snapshot(bool only_changes) {
  PartitionCut cut;
  const std::scoped_lock lock(mutex_);
  follow_snapshots();
  const SnapshotLog& log = store_.log();
  const bool all = !only_changes || log.whole();
  cut.kind = all ? BlockKind::kWhole : BlockKind::kDelta;
  if (all) cut.rows.reserve(store_.size());
  if (!all) cut.removed = log.removed();
  store_.index().for_each([&](Slot slot) {
    const std::uint32_t table = slot.table();
    const RowPlace place = store_.place(table, slot.row());
    if (!log.is_touched(place) && (all || log.changed_before(place))) {
      cut.rows.push_back(SnapshotRow{key_of(schema_->salt(table), slot.hash()), table, slot.row()});
    }
  });
  for (const PreImages::Image& image : log.images().all()) {
    if (all || image.changed) {
      cut.rows.push_back(SnapshotRow{image.key.key, image.key.table, kNoRow});
    }
  }
  return cut;
}

void Partition::copy_untouched(std::span<SnapshotRow> rows, std::size_t first,
                               BlockBuilder& block) {
  constexpr std::size_t kAhead = 16;
  const std::scoped_lock lock(mutex_);
  const auto settle = [this](SnapshotRow& row) {
    if (row.row == kNoRow) return;
    if (store_.log().is_touched(store_.place(row.table, row.row))) {
      row.row = kNoRow;
    } else {
      prefetch_row(store_.row(row.table, row.row), schema_->row_bytes(row.table));
    }
  };
  for (std::size_t i = 0; i < std::min(kAhead, rows.size()); ++i) settle(rows[i]);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (i + kAhead < rows.size()) settle(rows[i + kAhead]);
    const SnapshotRow& row = rows[i];
    if (row.row != kNoRow) block.set_row(row.table, first + i, store_.row(row.table, row.row));
  }
}

PreImages Partition::end_snapshot() {
  const std::scoped_lock lock(mutex_);
  if (store_.log().is_spoiled()) throw std::bad_alloc();
  return store_.log().stop_preserving();
}

void Partition::settle_snapshot(bool committed) noexcept {
  PreImages images;  // freed after the lock is gone
  const std::scoped_lock lock(mutex_);
  try {
    follow_snapshots();
  } catch (const std::bad_alloc&) {
    store_.log().skip_to(snapshots_->load(std::memory_order_acquire));
  }
  images = store_.log().stop_preserving();
  store_.log().settle(committed);
}

}  // namespace embermesh

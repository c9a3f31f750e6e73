#include "snapshot.h"

#include <algorithm>
#include <span>
#include <stdexcept>
#include <utility>

#include "partition_block.h"

namespace embermesh {
namespace {

// Rows copied in one hold of a partition's lock: some ten microseconds.
constexpr std::size_t kSlice = 256;

// What a block will hold, by table, in ascending order of keys.
struct Contents {
  explicit Contents(std::size_t tables) : rows(tables), removed(tables) {}

  std::vector<std::vector<SnapshotRow>> rows;
  std::vector<std::vector<std::uint64_t>> removed;
};

Contents by_table(std::size_t tables, const PartitionCut& cut) {
  Contents out(tables);
  for (const SnapshotRow& row : cut.rows) out.rows[row.table].push_back(row);
  for (auto& rows : out.rows) std::ranges::sort(rows, {}, &SnapshotRow::key);
  for (const TableKey& entry : cut.removed) out.removed[entry.table].push_back(entry.key);
  for (std::size_t table = 0; table < tables; ++table) {
    auto& removed = out.removed[table];
    std::ranges::sort(removed);
    removed.erase(std::unique(removed.begin(), removed.end()), removed.end());
    std::erase_if(removed, [&](std::uint64_t key) {  // a key may have come back
      return std::ranges::binary_search(out.rows[table], key, {}, &SnapshotRow::key);
    });
  }
  return out;
}

std::vector<BlockSize> sizes_of(const Contents& contents) {
  std::vector<BlockSize> sizes;
  sizes.reserve(contents.rows.size());
  for (std::size_t table = 0; table < contents.rows.size(); ++table) {
    sizes.push_back(BlockSize{contents.rows[table].size(), contents.removed[table].size()});
  }
  return sizes;
}

// Copies what is still as it was; then, with the partition told that we are done, the rest from
// the images that were saved meanwhile.
void copy_rows(Partition& partition, Contents& contents, BlockBuilder& block) {
  for (std::size_t table = 0; table < contents.rows.size(); ++table) {
    auto& rows = contents.rows[table];
    for (std::size_t i = 0; i < rows.size(); i += kSlice) {
      partition.copy_untouched(std::span(rows).subspan(i, std::min(kSlice, rows.size() - i)), i,
                               block);
    }
  }
  PreImages images = partition.end_snapshot();
  images.sort();
  for (std::size_t table = 0; table < contents.rows.size(); ++table) {
    const auto& rows = contents.rows[table];
    for (std::size_t i = 0; i < rows.size(); ++i) {
      block.set_key(table, i, rows[i].key);
      if (rows[i].row == kNoRow) {
        block.set_row(table, i, images.of({rows[i].table, rows[i].key}).bytes);
      }
    }
    const auto& removed = contents.removed[table];
    for (std::size_t i = 0; i < removed.size(); ++i) block.set_removed(table, i, removed[i]);
  }
}

}  // namespace

Snapshot::Snapshot(const Schema& schema, Partitions& partitions, SnapshotBook& book,
                   std::uint64_t id, std::optional<std::uint64_t> since)
    : schema_(schema),
      partitions_(partitions),
      book_(book),
      id_(id),
      is_delta_(since.has_value()),
      dumped_(partitions.size(), false) {
  if (book_.is_open_.exchange(true)) {
    throw std::invalid_argument("snapshot: another one is in the making");
  }
  if (since && since != book_.last_id_) {
    const std::string last = book_.last_id_
                                 ? "the latest complete one is " + std::to_string(*book_.last_id_)
                                 : "there is no complete one";
    book_.is_open_ = false;
    throw std::invalid_argument("since: the changes since snapshot " + std::to_string(*since) +
                                " are not known, " + last);
  }
  book_.now_.fetch_add(1);
}

std::vector<std::uint64_t> Snapshot::rows() {
  const std::scoped_lock lock(mutex_);
  if (!is_open_) throw std::invalid_argument("snapshot: it is over");
  std::vector<std::uint64_t> total(schema_.size(), 0);
  for (const auto& partition : partitions_) partition->count_snapshot_rows(total);
  return total;
}

std::optional<std::string> Snapshot::dump(std::int64_t partition) {
  if (partition < 0 || static_cast<std::uint64_t>(partition) >= partitions_.size()) {
    throw std::invalid_argument("partition: must be 0 to " +
                                std::to_string(partitions_.size() - 1) + ", got " +
                                std::to_string(partition));
  }
  const auto p = static_cast<std::uint32_t>(partition);
  const std::scoped_lock lock(mutex_);
  if (!is_open_) throw std::invalid_argument("snapshot: it is over");
  if (dumped_[p]) {
    throw std::invalid_argument("partition: " + std::to_string(p) + " has been dumped already");
  }
  dumped_[p] = true;
  const PartitionCut cut = partitions_[p]->begin_snapshot(is_delta_);
  const bool is_whole_anyway = is_delta_ && cut.kind == BlockKind::kWhole;
  if (cut.rows.empty() && cut.removed.empty() && !is_whole_anyway) {
    static_cast<void>(partitions_[p]->end_snapshot());
    return std::nullopt;
  }
  Contents contents = by_table(schema_.size(), cut);
  BlockBuilder block(schema_, cut.kind, p, static_cast<std::uint32_t>(partitions_.size()),
                     sizes_of(contents));
  copy_rows(*partitions_[p], contents, block);
  return std::move(block).seal();
}

void Snapshot::close(bool committed) noexcept {
  const std::scoped_lock lock(mutex_);
  if (!is_open_) return;
  is_open_ = false;
  for (const auto& partition : partitions_) partition->settle_snapshot(committed);
  if (committed) book_.last_id_ = id_;
  book_.is_open_ = false;
}

}  // namespace embermesh

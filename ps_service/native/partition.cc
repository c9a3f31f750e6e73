#include "partition.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace embermesh {
namespace {

// Keys looked up together: enough to hide one memory latency behind the others, few enough that
// the lines they asked for are still in the first-level cache.
constexpr std::size_t kWindow = 64;

void copy_floats(float* to, const float* from, std::size_t count) noexcept {
  std::size_t i = 0;
  for (; i + 4 <= count; i += 4) std::memcpy(to + i, from + i, 4 * sizeof(float));
  for (; i < count; ++i) to[i] = from[i];
}

}  // namespace

void PushScratch::begin(std::size_t entries) {
  const std::size_t cells = std::bit_ceil(2 * entries);
  if (seen_.size() < cells) seen_.assign(cells, Seen{});
  if (++round_ == 0) {  // the counter came round: old marks would look fresh
    std::ranges::fill(seen_, Seen{});
    round_ = 1;
  }
  rows_.resize(entries);
  updates_.clear();
  updates_.reserve(entries);
  sums_used_ = 0;
}

PushScratch::Seen& PushScratch::seen(RowNumber row) noexcept {
  const std::size_t mask = seen_.size() - 1;
  std::size_t at = (row * std::uint64_t{0x9E3779B97F4A7C15ULL} >> 32) & mask;
  while (seen_[at].round == round_ && seen_[at].row != row) at = (at + 1) & mask;
  return seen_[at];
}

void PushScratch::add_to(std::size_t update, const float* grad, std::size_t dim,
                         std::size_t sum_floats) {
  if (sums_used_ == 0 && sums_.size() < sum_floats) sums_.resize(sum_floats);
  RowUpdate& target = updates_[update];
  float* sum = sums_.data();
  const bool is_first = target.grad < sum || target.grad >= sum + sums_used_;
  if (is_first) {
    sum += sums_used_;
    sums_used_ += dim;
    copy_floats(sum, target.grad, dim);
    target.grad = sum;
  } else {
    sum += target.grad - sum;
  }
  for (std::size_t i = 0; i < dim; ++i) sum[i] += grad[i];
}

void Partition::pull(std::span<const Entry> entries, bool insert, float* values) {
  const std::scoped_lock lock(mutex_);
  RowNumber rows[kWindow];
  for (; !entries.empty(); entries = entries.subspan(std::min(kWindow, entries.size()))) {
    const auto window = entries.first(std::min(kWindow, entries.size()));
    for (const Entry& entry : window) store_.prefetch(entry.hash);
    for (std::size_t i = 0; i < window.size(); ++i) {
      const Entry& entry = window[i];
      rows[i] = store_.find(entry.table, entry.key, entry.hash);
      if (rows[i] != kNoRow) {
        prefetch_row(store_.row(rows[i]), schema_->dim(entry.table) * sizeof(float));
      } else if (insert) {
        rows[i] = store_.add(entry.table, entry.key, entry.hash);
        float* row = store_.row(rows[i]);
        const TableConfig& table = schema_->table(entry.table);
        schema_->fill_initial(entry.table, entry.key, row);
        table.optimizer->init(row + table.dim, table.dim);
      }
    }
    for (std::size_t i = 0; i < window.size(); ++i) {
      const Entry& entry = window[i];
      float* out = values + entry.offset;
      if (rows[i] != kNoRow) {
        copy_floats(out, store_.row(rows[i]), schema_->dim(entry.table));
      } else {
        schema_->fill_initial(entry.table, entry.key, out);
      }
    }
  }
}

PushResult Partition::push(std::span<const Entry> entries, const float* grads,
                           PushScratch& scratch) {
  scratch.begin(entries.size());
  const std::scoped_lock lock(mutex_);
  for (std::size_t start = 0; start < entries.size(); start += kWindow) {
    const auto window = entries.subspan(start, std::min(kWindow, entries.size() - start));
    for (const Entry& entry : window) store_.prefetch(entry.hash);
    for (std::size_t i = 0; i < window.size(); ++i) {
      const Entry& entry = window[i];
      scratch.rows_[start + i] = store_.find(entry.table, entry.key, entry.hash);
    }
  }
  PushResult result;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const Entry& entry = entries[i];
    const RowNumber row = scratch.rows_[i];
    if (row == kNoRow) {
      ++result.missing;
      continue;
    }
    ++result.applied;
    const float* grad = grads + entry.offset;
    PushScratch::Seen& seen = scratch.seen(row);
    if (seen.round == scratch.round_) {
      scratch.add_to(seen.update, grad, schema_->dim(entry.table), sum_floats(entries));
    } else {
      const auto update = static_cast<std::uint32_t>(scratch.updates_.size());
      seen = PushScratch::Seen{row, scratch.round_, update};
      scratch.updates_.push_back(RowUpdate{store_.row(row), grad, entry.table});
    }
  }
  apply(scratch.updates_);
  return result;
}

std::size_t Partition::sum_floats(std::span<const Entry> entries) const noexcept {
  std::size_t floats = 0;
  for (const Entry& entry : entries) floats += schema_->dim(entry.table);
  return floats;
}

void Partition::apply(std::span<const RowUpdate> updates) const noexcept {
  for (; !updates.empty(); updates = updates.subspan(std::min(kWindow, updates.size()))) {
    const auto window = updates.first(std::min(kWindow, updates.size()));
    for (const RowUpdate& update : window) {
      prefetch_row(update.row, schema_->row_bytes(update.table));
    }
    for (std::size_t start = 0; start < window.size();) {
      const std::uint32_t table = window[start].table;
      std::size_t end = start + 1;
      while (end < window.size() && window[end].table == table) ++end;
      const TableConfig& config = schema_->table(table);
      config.optimizer->apply(window.subspan(start, end - start), config.dim);
      start = end;
    }
  }
}

void Partition::count_rows(std::span<std::uint64_t> rows) const {
  const std::scoped_lock lock(mutex_);
  for (std::size_t table = 0; table < rows.size(); ++table) rows[table] += store_.rows()[table];
}

std::size_t Partition::bytes() const {
  const std::scoped_lock lock(mutex_);
  return store_.bytes();
}

TableRows Partition::copy_rows(std::uint32_t table) const {
  const std::scoped_lock lock(mutex_);
  return store_.copy_rows(table);
}

std::vector<TableRows> Partition::copy_rows() const {
  const std::scoped_lock lock(mutex_);
  return store_.copy_rows();
}

void Partition::replace(RowStore&& content) {
  RowStore old = std::move(content);  // freed after the lock is gone
  const std::scoped_lock lock(mutex_);
  std::swap(store_, old);
}

}  // namespace embermesh

#include <algorithm>
#include <bit>

#include "verbs.h"

namespace embermesh {

void PushScratch::begin(std::span<const Entry> entries) {
  entries_ = entries;
  const std::size_t cells = std::bit_ceil(2 * entries.size() + 2);
  if (seen_.size() < cells) seen_.assign(cells, Seen{});
  mask_ = cells - 1;
  if (++round_ == 0) {  // the counter came round: old marks would look fresh
    std::ranges::fill(seen_, Seen{});
    round_ = 1;
  }
  if (updates_.size() < entries.size()) updates_.resize(entries.size());
  size_ = 0;
  sums_used_ = 0;
}

void PushScratch::add_to(RowUpdate& target, const float* grad, const Schema& schema) {
  if (sums_used_ == 0) make_room_for_sums(schema);
  const std::size_t dim = schema.dim(target.table);
  float* sum = sums_.data();
  const bool is_first = target.grad < sum || target.grad >= sum + sums_used_;
  if (is_first) {
    sum += sums_used_;
    sums_used_ += dim;
    std::copy_n(target.grad, dim, sum);
    target.grad = sum;
  } else {
    sum += target.grad - sum;
  }
  for (std::size_t i = 0; i < dim; ++i) sum[i] += grad[i];
}

// All at once, because updates point into it.
void PushScratch::make_room_for_sums(const Schema& schema) {
  std::size_t floats = 0;
  for (const Entry& entry : entries_) floats += schema.dim(entry.table());
  if (sums_.size() < floats) sums_.resize(floats);
}

// A row goes by the table that stands for all with its update, so that neighbours of two tables may
// share a call of the optimizer: what differs between these is nothing that an update looks at.
[[gnu::always_inline]] inline void PushVerb::add(std::size_t half, const Entry& entry, float* row) {
  ++result_.applied;
  const TableShape& shape = context_.schema().shape(entry.table());
  halves_[half].add(context_.schema(),
                    RowUpdate{row, grads_ + entry.offset(), entry.hash(), shape.update});
}

[[gnu::always_inline]] inline void PushVerb::prefetch(
    const Run& run, std::span<const Entry> entries) const noexcept {
  context_.prefetch(run, entries);
  const std::span<const TableShape> shapes = context_.schema().shapes();
  for (const Entry& entry : entries) {
    prefetch_row(grads_ + entry.offset(), shapes[entry.table()].dim * sizeof(float));
  }
}

[[gnu::noinline]] void PushVerb::put_off(const Run& run, const Entry& entry, std::size_t place) {
  run.store->index().prefetch_next(entry.hash());
  unsettled_.push_back({&entry, run.store, place});
}

[[gnu::always_inline]] inline void PushVerb::find(std::size_t half, const Run& run,
                                                  std::span<const Entry> entries,
                                                  std::size_t first) {
  RowStore& store = *run.store;
  const FlatIndex::Reader index(store.index());
  const std::size_t known = halves_[half].updates().size();
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const Entry& entry = entries[i];
    const Slot slot = index.find(entry.table(), entry.hash());
    if (!slot) [[unlikely]] {
      put_off(run, entry, first + i);
      continue;
    }
    if (sees_) see(entry, slot.meta());
    add(half, entry, store.writable_row(entry.table(), slot));
  }
  prefetch_rows(half, known);
}

// Together, for the reason that PullVerb::find gives.
void PushVerb::prefetch_rows(std::size_t half, std::size_t first) const noexcept {
  for (const RowUpdate& update : halves_[half].updates().subspan(first)) {
    prefetch_row(update.row, context_.schema().shape(update.table).row_bytes);
  }
}

// Equal keys are settled here all or none, in the order of the request: no sum changes its order.
void PushVerb::settle(std::size_t half) {
  const std::size_t known = halves_[half].updates().size();
  for (const auto& [entry, store, place] : unsettled_) {
    const Slot slot = store->find(entry->table(), entry->hash());
    if (slot) {
      if (sees_) see(*entry, slot.meta());
      add(half, *entry, store->writable_row(entry->table(), slot));
    } else {
      miss(*entry);
    }
  }
  unsettled_.clear();
  prefetch_rows(half, known);
}

void PushVerb::miss(const Entry& entry) noexcept {
  ++result_.missing;
  context_.life(entry).dropped(entry.table());
}

void PushVerb::see(const Entry& entry, RowMeta& meta) const noexcept {
  const auto [shows, clicks] = usage_->of(entry.offset());
  meta = context_.life(entry).pushed(entry.table(), entry.hash(), meta, shows, clicks, moment_);
}

// The unit has at most as many updates as entries.
inline void PushVerb::finish(std::size_t half, const Run& /*run*/, std::span<const Entry> entries,
                             std::size_t first) const noexcept {
  std::span<const RowUpdate> updates = halves_[half].updates();
  updates = updates.subspan(std::min(first, updates.size()));
  updates = updates.first(std::min(entries.size(), updates.size()));
  while (!updates.empty()) {
    const std::uint32_t table = updates.front().table;
    std::size_t same = 1;
    while (same < updates.size() && updates[same].table == table) ++same;
    context_.schema().apply(table, updates.first(same), step_);
    updates = updates.subspan(same);
  }
}

void PushVerb::run(const UnitSource& source, LockWindow& locks) {
  run_pipeline(*this, context_.partitions(), source, locks);
}

}  // namespace embermesh

#include <algorithm>
#include <bit>

#include "simd.h"
#include "verbs.h"

namespace embermesh {

void PushScratch::begin(std::span<const Entry> entries) {
  entries_ = entries;
  const std::size_t cells = std::bit_ceil(2 * entries.size());
  if (seen_.size() < cells) seen_.assign(cells, Seen{});
  if (++round_ == 0) {  // the counter came round: old marks would look fresh
    std::ranges::fill(seen_, Seen{});
    round_ = 1;
  }
  updates_.clear();
  updates_.reserve(entries.size());
  sums_used_ = 0;
}

void PushScratch::add(const Schema& schema, const RowUpdate& update) {
  const std::size_t mask = seen_.size() - 1;
  for (std::size_t at = update.hash & mask;; at = (at + 1) & mask) {
    Seen& seen = seen_[at];
    if (seen.round != round_) {
      seen = Seen{round_, static_cast<std::uint32_t>(updates_.size())};
      updates_.push_back(update);
      prefetch_row(update.row, schema.row_bytes(update.table));
      return;
    }
    RowUpdate& known = updates_[seen.update];
    if (known.row == update.row) return add_to(known, update.grad, schema);
  }
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

void PushVerb::find(std::size_t lane, std::span<const Entry> entries, std::size_t /*first*/) {
  for (const Entry& entry : entries) {
    const std::uint32_t table = entry.table();
    RowStore& store = context_.store(entry);
    Slot* slot = store.find(table, entry.hash());
    if (slot == nullptr) {
      ++result_.missing;
      context_.life(entry).dropped(table);
      continue;
    }
    if (sees_) see(entry, *slot);
    ++result_.applied;
    lanes_[lane].add(context_.schema, RowUpdate{store.writable_row(table, *slot),
                                                grads_ + entry.offset(), entry.hash(), table});
  }
}

void PushVerb::see(const Entry& entry, Slot& slot) const noexcept {
  const auto [shows, clicks] = usage_->of(entry.offset());
  slot.meta =
      context_.life(entry).pushed(entry.table(), entry.hash(), slot.meta, shows, clicks, moment_);
}

// The unit has at most as many updates as entries.
void PushVerb::finish(std::size_t lane, std::span<const Entry> entries,
                      std::size_t first) noexcept {
  std::span<const RowUpdate> updates = lanes_[lane].updates();
  updates = updates.subspan(std::min(first, updates.size()));
  updates = updates.first(std::min(entries.size(), updates.size()));
  while (!updates.empty()) {
    const std::uint32_t table = updates.front().table;
    std::size_t same = 1;
    while (same < updates.size() && updates[same].table == table) ++same;
    context_.schema.apply(table, updates.first(same), step_);
    updates = updates.subspan(same);
  }
}

}  // namespace embermesh

#include <cstring>

#include "verbs.h"

namespace embermesh {
namespace {

void copy_floats(float* __restrict to, const float* __restrict from, std::size_t count) noexcept {
  constexpr std::size_t kLineFloats = kCacheLine / sizeof(float);
  std::size_t i = 0;
  for (; i + kLineFloats <= count; i += kLineFloats) {
    std::memcpy(to + i, from + i, kCacheLine);  // of known size: no call
  }
  for (; i + 4 <= count; i += 4) std::memcpy(to + i, from + i, 4 * sizeof(float));
  for (; i < count; ++i) to[i] = from[i];
}

}  // namespace

PullVerb::PullVerb(const VerbContext& context, const Moment& moment, bool insert, float* values,
                   std::size_t floats) noexcept
    : context_(context),
      moment_(moment),
      insert_(insert),
      sees_(insert && context.schema().evicts()),
      values_(values),
      streams_(floats >= kManyFloats && context.schema().has_whole_lines() &&
               is_line_aligned(values)) {}

void PullVerb::find(std::size_t lane, std::span<const Entry> entries, std::size_t first) noexcept {
  context_.for_each_run(
      entries, [&](const RowStore& store, std::uint32_t table, auto run, std::size_t place) {
        const FlatIndex& index = store.index(table);
        const RowArena& arena = store.arena(table);
        const std::size_t bytes = context_.schema().weight_bytes(table);
        const bool sees = sees_ && context_.schema().evicts(table);
        place += first;
        if (index.size() == 0) {
          for (const Entry& entry : run) unsettled_.add(entry, place++);
          return;
        }
        for (const Entry& entry : run) {
          Slot* const slot = index.find_at_home(entry.hash());
          if (slot != nullptr) {
            const float* row = arena.row(slot->row);
            prefetch_row(row, bytes);
            rows_[lane][place] = row;
            if (sees) see(entry, *slot);
          } else {
            index.prefetch_next(entry.hash());
            unsettled_.add(entry, place);
          }
          ++place;
        }
      });
}

void PullVerb::settle_each(std::size_t lane, std::span<const Unsettled::Item> items) {
  for (const auto& [entry, place] : items) {
    const RowStore& store = context_.store(*entry);
    Slot* const slot = store.index(entry->table()).find(entry->hash());
    const float* row = slot != nullptr ? store.arena(entry->table()).row(slot->row)
                       : insert_       ? add(*entry)
                                       : nullptr;
    if (slot != nullptr && sees_ && context_.schema().evicts(entry->table())) see(*entry, *slot);
    if (row != nullptr) {
      prefetch_row(row, context_.schema().weight_bytes(entry->table()));
    }
    rows_[lane][place] = row;
  }
}

const float* PullVerb::add(const Entry& entry) const {
  if (!context_.life(entry).admit(entry.table(), entry.hash(), moment_)) return nullptr;
  RowStore& store = context_.store(entry);
  float* row = store.add(entry.table(), entry.hash());
  context_.schema().init_row(entry.table(), entry.hash(), row);
  if (sees_ && context_.schema().evicts(entry.table())) {
    see(entry, *store.index(entry.table()).find(entry.hash()));
  }
  return row;
}

EMBERMESH_SIMD void PullVerb::finish(std::size_t lane, std::span<const Entry> entries,
                                     std::size_t first) const noexcept {
  const float* const* row = rows_[lane].data() + first;
  for (const Entry& entry : entries) {
    float* out = values_ + entry.offset();
    const TableConfig& table = context_.schema().table(entry.table());
    if (*row == nullptr) {
      context_.schema().fill_initial(entry.table(), entry.hash(), out);
    } else if (streams_) {
      stream_lines(out, *row, table.dim);
    } else if (table.weights == WeightType::kFp32) {
      copy_floats(out, *row, table.dim);
    } else {
      widen_weights(table.weights, *row, table.dim, out);
    }
    ++row;
  }
}

}  // namespace embermesh

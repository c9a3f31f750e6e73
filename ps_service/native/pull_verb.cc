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

// Writes rows[i], whole lines all, to values + entries[i].offset(), past the caches; whether it did
// so for all, which it does not if one is null or the CPU has no store of a whole line. A line that
// is written at once never waits half full for its rest while other lines want its buffer.
#ifdef EMBERMESH_AVX512
EMBERMESH_AVX512 bool stream_at_once(std::span<const Entry> entries, const float* const* rows,
                                     std::span<const TableShape> shapes, float* values) noexcept {
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (rows[i] == nullptr) return false;
    const std::size_t dim = shapes[entries[i].table()].dim;
    float* const out = values + entries[i].offset();
    for (std::size_t f = 0; f < dim; f += kCacheLine / sizeof(float)) {
      _mm512_stream_ps(out + f, _mm512_loadu_ps(rows[i] + f));
    }
  }
  return true;
}
#endif
EMBERMESH_ANY_CPU bool stream_at_once(std::span<const Entry> /*entries*/,
                                      const float* const* /*rows*/,
                                      std::span<const TableShape> /*shapes*/,
                                      float* /*values*/) noexcept {
  return false;
}

PullVerb::PullVerb(const VerbContext& context, const Moment& moment, bool insert, float* values,
                   std::size_t floats) noexcept
    : context_(context),
      moment_(moment),
      insert_(insert),
      sees_(insert && context.schema().evicts()),
      values_(values),
      streams_(floats >= kManyFloats && context.schema().has_whole_lines() &&
               is_line_aligned(values)) {}

[[gnu::noinline]] void PullVerb::put_off(const Run& run, const Entry& entry, std::size_t place) {
  run.store->index().prefetch_next(entry.hash());
  unsettled_.push_back({&entry, run.store, place});
}

[[gnu::always_inline]] inline void PullVerb::find(std::size_t half, const Run& run,
                                                  std::span<const Entry> entries,
                                                  std::size_t first) {
  const RowStore& store = *run.store;
  const FlatIndex::Reader index(store.index());
  const std::span<const TableShape> shapes = context_.schema().shapes();
  const float** const rows = rows_[half].data() + first;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const Entry& entry = entries[i];
    const Slot slot = index.find(entry.table(), entry.hash());
    if (!slot) [[unlikely]] {
      put_off(run, entry, first + i);
      rows[i] = values_;  // until it is settled: any memory, so that the loop below has no branch
      continue;
    }
    rows[i] = store.row(entry.table(), slot.row());
    if (sees_) see(entry, slot.meta());
  }
  // Together, so that their walks through page tables overlap: a request for a line waits for its
  // walk among the instructions in flight, and there are a hundred to a key above.
  for (std::size_t i = 0; i < entries.size(); ++i) {
    prefetch_row(rows[i], shapes[entries[i].table()].weight_bytes);
  }
}

// In two steps, so that the lines of new rows are on their way before any of them is filled.
void PullVerb::settle(std::size_t half) {
  if (unsettled_.empty()) return;
  if (insert_) fresh_.reserve(unsettled_.size());  // so that no row that was added is forgotten
  try {
    look_again(half);
  } catch (...) {
    fill_fresh();
    throw;
  }
  fill_fresh();
}

void PullVerb::look_again(std::size_t half) {
  for (const auto& [entry, store, place] : unsettled_) {
    rows_[half][place] = insert_ ? find_or_add(*entry, *store) : find_again(*entry, *store);
  }
  unsettled_.clear();
}

const float* PullVerb::find_again(const Entry& entry, const RowStore& store) const noexcept {
  const Slot slot = store.find(entry.table(), entry.hash());
  if (!slot) return nullptr;
  const float* const row = store.row(slot);
  prefetch_row(row, context_.schema().shape(entry.table()).weight_bytes);
  return row;
}

const float* PullVerb::find_or_add(const Entry& entry, RowStore& store) {
  const Slot slot = store.find_or_next(entry.table(), entry.hash());
  float* row = nullptr;
  if (slot.is_empty()) {
    if (!context_.life(entry).admit(entry.table(), entry.hash(), moment_)) return nullptr;
    row = store.add(slot, entry.table(), entry.hash());
    fresh_.push_back({row, entry.hash(), entry.table()});
    prefetch_to_write(row, context_.schema().row_bytes(entry.table()));
  } else {
    row = store.row(slot);
    prefetch_row(row, context_.schema().shape(entry.table()).weight_bytes);
  }
  if (sees_) see(entry, slot.meta());
  return row;
}

void PullVerb::fill_fresh() noexcept {
  for (const FreshRow& fresh : fresh_) {
    context_.schema().init_row(fresh.table, fresh.hash, fresh.row);
  }
  fresh_.clear();
}

[[gnu::always_inline]] inline void PullVerb::finish(std::size_t half, const Run& /*run*/,
                                                    std::span<const Entry> entries,
                                                    std::size_t first) const noexcept {
  const float* const* const rows = rows_[half].data() + first;
  const std::span<const TableShape> shapes = context_.schema().shapes();
  if (streams_ && stream_at_once(entries, rows, shapes, values_)) return;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const Entry& entry = entries[i];
    const TableShape& table = shapes[entry.table()];
    float* const out = values_ + entry.offset();
    if (rows[i] == nullptr) [[unlikely]] {
      context_.schema().fill_initial(entry.table(), entry.hash(), out);
    } else if (streams_) {
      stream_lines(out, rows[i], table.dim);
    } else if (table.weights == WeightType::kFp32) {
      copy_floats(out, rows[i], table.dim);
    } else {
      widen_weights(table.weights, rows[i], table.dim, out);
    }
  }
}

void PullVerb::run(const UnitSource& source, LockWindow& locks) {
  run_pipeline(*this, context_.partitions(), source, locks);
}

}  // namespace embermesh

#include "simd.h"
#include "verbs.h"

namespace embermesh {

EMBERMESH_SIMD static void copy_floats(float* __restrict to, const float* __restrict from,
                                       std::size_t count) noexcept {
  for (std::size_t i = 0; i < count; ++i) to[i] = from[i];
}

void PullVerb::find(std::size_t lane, std::span<const Entry> entries, std::size_t first) {
  const float** rows = rows_[lane].data() + first;
  for (const Entry& entry : entries) {
    const std::uint32_t table = entry.table();
    const RowStore& store = context_.store(entry);
    Slot* slot = store.find(table, entry.hash());
    if (slot != nullptr) {
      const float* row = store.row(table, slot->row);
      prefetch_row(row, context_.schema.weight_bytes(table));
      *rows++ = row;
      if (sees_ && context_.schema.evicts(table)) see(entry, *slot);
    } else {
      *rows++ = insert_ ? add(entry) : nullptr;
    }
  }
}

float* PullVerb::add(const Entry& entry) const {
  if (!context_.life(entry).admit(entry.table(), entry.hash(), moment_)) return nullptr;
  RowStore& store = context_.store(entry);
  float* row = store.add(entry.table(), entry.hash());
  context_.schema.init_row(entry.table(), entry.hash(), row);
  if (sees_ && context_.schema.evicts(entry.table())) {
    see(entry, *store.find(entry.table(), entry.hash()));
  }
  return row;
}

void PullVerb::finish(std::size_t lane, std::span<const Entry> entries,
                      std::size_t first) noexcept {
  const float* const* rows = rows_[lane].data() + first;
  for (const Entry& entry : entries) {
    const float* row = *rows++;
    float* out = values_ + entry.offset();
    const TableConfig& table = context_.schema.table(entry.table());
    if (row == nullptr) {
      context_.schema.fill_initial(entry.table(), entry.hash(), out);
    } else if (table.weights == WeightType::kFp32) {
      copy_floats(out, row, table.dim);
    } else {
      widen_weights(table.weights, row, table.dim, out);
    }
  }
}

}  // namespace embermesh

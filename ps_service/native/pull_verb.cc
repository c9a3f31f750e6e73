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
    const Slot* slot = store.find(table, entry.hash());
    if (slot != nullptr) {
      const float* row = store.row(table, slot->row);
      prefetch_row(row, context_.schema.dim(table) * sizeof(float));
      *rows++ = row;
    } else {
      *rows++ = insert_ ? add(entry) : nullptr;
    }
  }
}

float* PullVerb::add(const Entry& entry) const {
  const TableConfig& table = context_.schema.table(entry.table());
  float* row = context_.store(entry).add(entry.table(), entry.hash());
  context_.schema.fill_initial(entry.table(), entry.hash(), row);
  table.optimizer->init(row + table.dim, table.dim);
  return row;
}

void PullVerb::finish(std::size_t lane, std::span<const Entry> entries,
                      std::size_t first) noexcept {
  const float* const* rows = rows_[lane].data() + first;
  for (const Entry& entry : entries) {
    const float* row = *rows++;
    float* out = values_ + entry.offset();
    if (row != nullptr) {
      copy_floats(out, row, context_.schema.dim(entry.table()));
    } else {
      context_.schema.fill_initial(entry.table(), entry.hash(), out);
    }
  }
}

}  // namespace embermesh

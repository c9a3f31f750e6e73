#include "row_memory.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace embermesh {

RowMemory::RowMemory(const Schema& schema, std::shared_ptr<StandbyMemory> standby)
    : names_(schema.size()),
      standby_(std::move(standby)),
      index_pool_(FlatIndex::kPageBytes, *standby_) {
  for (std::size_t table = 0; table < schema.size(); ++table) {
    const std::uint32_t units = RowArena::units_for(schema.table(table).row_floats());
    const auto known = std::ranges::find(widths_, units, &Width::units);
    arena_of_.push_back(static_cast<std::uint32_t>(known - widths_.begin()));
    if (known == widths_.end()) widths_.push_back(Width{units, &pool_for(units)});
  }
}

SlabPool& RowMemory::pool_for(std::uint32_t units) {
  // Small, because every partition that has a row holds at least one slab per width.
  constexpr std::size_t kMinSlab = std::size_t{16} << 10;
  const std::size_t bytes =
      std::max(kMinSlab, std::bit_ceil(std::size_t{4} * units * RowArena::kUnitBytes));
  const auto known = std::ranges::find(row_pools_, bytes, &SlabPool::slab_bytes);
  return known != row_pools_.end() ? *known : row_pools_.emplace_back(bytes, *standby_);
}

void RowMemory::trim() noexcept {
  index_pool_.trim();
  for (SlabPool& pool : row_pools_) pool.trim();
}

}  // namespace embermesh

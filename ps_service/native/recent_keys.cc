#include "recent_keys.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <stdexcept>
#include <string>

#include "hash.h"
#include "hashed_keys.h"
#include "simd.h"

namespace embermesh {
namespace {

// The groups with their lists made as long as they will be. `counts` is [group, segment].
std::vector<KeyGroup> sized_groups(std::span<const std::uint32_t> counts, std::size_t segments,
                                   std::uint64_t oldest) {
  std::vector<KeyGroup> groups(counts.size() / segments);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const auto own = counts.subspan(g * segments, segments);
    std::size_t keys = 0;
    for (const std::uint32_t count : own) keys += count;
    groups[g].step = g == 0 ? 0 : oldest + g - 1;
    groups[g].positions.resize(keys);
    groups[g].keys.resize(keys);
    groups[g].counts.assign(own.begin(), own.end());
  }
  return groups;
}

}  // namespace

void RecentKeys::make_room(Table& table, std::size_t more, std::uint64_t salt,
                           std::uint64_t oldest) {
  if (2 * (table.used + more) <= table.cells.size()) return;
  moving_.clear();
  std::ranges::copy_if(table.cells.items(), std::back_inserter(moving_),
                       [oldest](const Cell& cell) { return cell.step >= oldest; });
  const std::size_t wanted = std::bit_ceil(4 * (moving_.size() + more) + 1);
  if (table.cells.size() == wanted) {
    std::ranges::fill(table.cells.items(), Cell{});
  } else {
    table.cells = HugeArray<Cell>(wanted);
  }
  table.used = moving_.size();
  for (const Cell& cell : moving_) table.cell_of(cell.key, row_hash(salt, cell.key)) = cell;
}

RecentKeys::Cell& RecentKeys::Table::cell_of(std::uint64_t key, std::uint64_t hash) noexcept {
  std::size_t at = hash & mask();
  Cell* const all = cells.data();
  while (all[at].step != 0 && all[at].key != key) at = (at + 1) & mask();
  return all[at];
}

void RecentKeys::check(const Plan& plan, std::uint64_t step, std::uint64_t oldest) const {
  if (core_ != nullptr && core_ != plan.core_) {
    throw std::invalid_argument("plan: not of the same planner as those before it");
  }
  if (step <= last_step_) {
    throw std::invalid_argument("step: is " + std::to_string(step) + ", must be above the last, " +
                                std::to_string(last_step_));
  }
  if (oldest < oldest_ || oldest > step || step - oldest > kMaxSteps) {
    throw std::invalid_argument("oldest: is " + std::to_string(oldest) + ", must be at least " +
                                std::to_string(oldest_) + " and 0 to " + std::to_string(kMaxSteps) +
                                " before step " + std::to_string(step));
  }
}

void RecentKeys::enter(Table& table, std::uint64_t salt, std::span<const std::uint64_t> keys,
                       std::uint64_t step, std::uint64_t oldest, std::uint16_t* groups) noexcept {
  Cell* const cells = table.cells.data();
  const std::uint64_t mask = table.mask();
  const auto ask = [=](std::span<const std::uint64_t> hashes) {
    for (const std::uint64_t hash : hashes) prefetch_line<Cache::kFirst>(cells + (hash & mask));
  };
  for_each_block(salt, keys, ask, [&](std::size_t i, auto block, const std::uint64_t* hashes) {
    for (std::size_t j = 0; j < block.size(); ++j) {
      Cell& cell = table.cell_of(block[j], hashes[j]);
      table.used += cell.step == 0 ? 1 : 0;
      groups[i + j] = static_cast<std::uint16_t>(cell.step < oldest ? 0 : cell.step - oldest + 1);
      cell = Cell{block[j], step};
    }
  });
}

std::vector<KeyGroup> RecentKeys::split(const Plan& plan, std::uint64_t step,
                                        std::uint64_t oldest) {
  const std::scoped_lock lock(mutex_);
  check(plan, step, oldest);
  const std::span unique(plan.unique());
  const std::span sizes(plan.counts());  // [S, T]
  core_ = plan.core_;
  tables_.resize(core_->config.dims.size());
  std::vector<std::uint16_t> groups(unique.size());
  std::vector<std::uint32_t> counts((step - oldest + 1) * sizes.size());
  std::size_t first = 0;
  for (std::size_t segment = 0; segment < sizes.size(); ++segment) {
    const std::size_t number = segment % tables_.size();
    const std::uint64_t salt = table_salt(static_cast<std::uint32_t>(number));
    make_room(tables_[number], sizes[segment], salt, oldest);
    enter(tables_[number], salt, unique.subspan(first, sizes[segment]), step, oldest,
          groups.data() + first);
    for (const std::size_t end = first + sizes[segment]; first < end; ++first) {
      ++counts[groups[first] * sizes.size() + segment];
    }
  }
  last_step_ = step;
  oldest_ = oldest;
  std::vector<KeyGroup> found = sized_groups(counts, sizes.size(), oldest);
  std::vector<std::size_t> filled(found.size());
  for (std::size_t i = 0; i < unique.size(); ++i) {
    KeyGroup& group = found[groups[i]];
    const std::size_t at = filled[groups[i]]++;
    group.positions[at] = static_cast<std::int32_t>(i);
    group.keys[at] = unique[i];
  }
  const auto is_empty = [](const KeyGroup& group) { return group.step != 0 && group.keys.empty(); };
  std::erase_if(found, is_empty);
  return found;
}

std::size_t RecentKeys::cells() {
  const std::scoped_lock lock(mutex_);
  std::size_t all = 0;
  for (const Table& table : tables_) all += table.cells.size();
  return all;
}

}  // namespace embermesh

// What a trainer that reads rows ahead of their step asks of plans: which keys two batches share,
// and rows that come in several parts.
#include <algorithm>
#include <span>
#include <stdexcept>
#include <string>

#include "hash.h"
#include "hashed_keys.h"
#include "planner.h"
#include "unique_set.h"

namespace embermesh {
std::vector<std::int32_t> Plan::last_in(std::span<const Plan* const> others) const {
  std::vector<std::int32_t> last(unique_.size(), -1);
  thread_local UniqueSet memory;
  UniqueSet& set = memory;          // GCC would look a variable of a thread up for every key
  std::vector<std::uint64_t> keys;  // of the set
  for (std::size_t other = 0; other < others.size(); ++other) {
    const Plan& plan = *others[other];
    if (plan.core_ != core_) throw std::invalid_argument("plans: not all of the same planner");
    // Equal keys of one table have the same owner, so they are in the same segment of both plans.
    std::size_t mine = 0;
    std::size_t theirs = 0;
    for (std::size_t segment = 0; segment < counts_.size(); ++segment) {
      const std::span own = unique().subspan(mine, counts_[segment]);
      const std::span shared = plan.unique().subspan(theirs, plan.counts_[segment]);
      const std::uint64_t salt =
          table_salt(static_cast<std::uint32_t>(segment % config().dims.size()));
      set.begin(own.size() + shared.size());
      keys.resize(own.size() + shared.size());
      for_each_hashed(set, salt, shared, [&](std::size_t i, std::uint64_t hash) {
        set.number_of(shared[i], hash, keys.data());
      });
      for_each_hashed(set, salt, own, [&](std::size_t i, std::uint64_t hash) {
        // The keys of a plan are distinct: a number that was given before is the other's key.
        if (set.number_of(own[i], hash, keys.data()) < shared.size()) {
          last[mine + i] = static_cast<std::int32_t>(other);
        }
      });
      mine += own.size();
      theirs += shared.size();
    }
  }
  return last;
}

void Plan::place(std::span<const float> rows, std::span<const std::int32_t> positions,
                 float* values) const {
  std::size_t floats = 0;
  for (const std::int32_t position : positions) {
    if (position < 0 || static_cast<std::size_t>(position) >= unique_.size()) {
      throw std::invalid_argument("positions: " + std::to_string(position) + " is not in 0 to " +
                                  std::to_string(unique_.size()) + " - 1");
    }
    floats += row_floats(static_cast<std::size_t>(position));
  }
  if (floats != rows.size()) {
    throw std::invalid_argument("rows: expected " + std::to_string(floats) + " values, got " +
                                std::to_string(rows.size()));
  }
  const float* row = rows.data();
  for (const std::int32_t position : positions) {
    const auto key = static_cast<std::size_t>(position);
    const std::size_t size = row_floats(key);
    std::copy_n(row, size, values + start(key));
    row += size;
  }
}

}  // namespace embermesh

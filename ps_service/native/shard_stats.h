// What a shard can say about itself.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lifecycle.h"

namespace embermesh {

// Of one table; counts are since the shard was made.
struct TableStats {
  std::uint64_t rows = 0;    // now
  std::uint64_t pulled = 0;  // places of training pulls
  TableTally tally;
  std::uint64_t gate_bytes = 0;
};

// Of the index of all tables.
struct IndexStats {
  std::uint32_t sampled = 0;  // partitions that have rows
  std::uint64_t rows = 0;
  std::uint64_t slots = 0;
  // Rows by the number of cache lines that finding them reads, from 1; the last place is for more.
  std::array<std::uint64_t, 8> probes{};
};

// Keys that were removed: table t has counts[t] of `keys`, after those of the tables before.
struct RemovedKeys {
  std::vector<std::uint32_t> counts;
  std::vector<std::uint64_t> keys;
  bool is_complete = true;  // no other key was removed since the last call
};

}  // namespace embermesh

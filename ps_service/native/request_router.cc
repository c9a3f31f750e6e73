#include "request_router.h"

namespace embermesh {

void RequestRouter::reserve(std::size_t keys) {
  if (keys <= capacity_) return;
  hashes_ = std::make_unique_for_overwrite<std::uint64_t[]>(keys);
  entries_ = std::make_unique_for_overwrite<Entry[]>(keys);
  capacity_ = keys;
}

// A stable counting sort: hash and count, then place.
void RequestRouter::route(const Schema& schema, Partitioning partition_of, std::uint32_t partitions,
                          std::span<const std::uint32_t> counts,
                          std::span<const std::uint64_t> keys) {
  reserve(keys.size());
  ends_.assign(std::size_t{partitions} + 1, 0);
  std::size_t at = 0;
  for (std::size_t segment = 0; segment < counts.size(); ++segment) {
    const std::uint64_t salt = schema.salt(segment % schema.size());
    for (const std::size_t end = at + counts[segment]; at < end; ++at) {
      hashes_[at] = row_hash(salt, keys[at]);
      ++ends_[partition_of(hashes_[at]) + 1];
    }
  }
  for (std::uint32_t p = 0; p < partitions; ++p) ends_[p + 1] += ends_[p];
  // ends_[p] is now the START of partition p; placing moves it to the end.
  at = 0;
  std::uint64_t offset = 0;
  for (std::size_t segment = 0; segment < counts.size(); ++segment) {
    const auto table = static_cast<std::uint32_t>(segment % schema.size());
    const std::size_t dim = schema.dim(table);
    for (const std::size_t end = at + counts[segment]; at < end; ++at, offset += dim) {
      const std::uint64_t hash = hashes_[at];
      entries_[ends_[partition_of(hash)]++] =
          Entry{keys[at], offset, static_cast<std::uint32_t>(hash), table};
    }
  }
}

}  // namespace embermesh

// Groups the keys of one request by partition, keeping their order within a partition.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "hash.h"
#include "partition.h"
#include "table_config.h"

namespace embermesh {

// Working memory of one thread; each route() overwrites the last.
class RequestRouter {
 public:
  // `counts` must be whole groups of schema.size() counts that add up to keys.size().
  // Throws std::bad_alloc.
  void route(const Schema& schema, Partitioning partition_of, std::uint32_t partitions,
             std::span<const std::uint32_t> counts, std::span<const std::uint64_t> keys);

  [[nodiscard]] std::span<const Entry> entries(std::uint32_t partition) const noexcept {
    const std::size_t start = partition == 0 ? 0 : ends_[partition - 1];
    return {entries_.get() + start, ends_[partition] - start};
  }

  PushScratch push_scratch;

 private:
  void reserve(std::size_t keys);

  std::size_t capacity_ = 0;
  std::unique_ptr<std::uint64_t[]> hashes_;
  std::unique_ptr<Entry[]> entries_;
  std::vector<std::size_t> ends_;  // ends_[p]: one past partition p's last entry
};

}  // namespace embermesh

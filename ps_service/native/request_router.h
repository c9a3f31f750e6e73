// Groups the keys of one request by partition, keeping their order within a partition.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "hash.h"
#include "table_config.h"
#include "thread_team.h"

namespace embermesh {

// One key of a request, on its way to its partition.
class Entry {
 public:
  Entry() = default;
  Entry(std::uint64_t hash, std::uint32_t table, std::uint64_t offset) noexcept
      : hash_(hash), place_(offset << kTableBits | table) {}

  [[nodiscard]] std::uint64_t hash() const noexcept { return hash_; }  // row_hash of the key
  [[nodiscard]] std::uint32_t table() const noexcept {
    return static_cast<std::uint32_t>(place_ & (kMaxTables - 1));
  }
  // First float of this key's values or gradient within the request.
  [[nodiscard]] std::uint64_t offset() const noexcept { return place_ >> kTableBits; }

 private:
  static constexpr int kTableBits = 16;
  static_assert(kMaxTables == 1 << kTableBits);

  std::uint64_t hash_;
  std::uint64_t place_;
};

// The keys and what is fixed about their shard. `counts` must be whole groups of schema.size()
// counts that add up to keys.size().
struct Request {
  const Schema& schema;
  Partitioning partition_of;
  std::uint32_t partitions;
  std::span<const std::uint32_t> counts;
  std::span<const std::uint64_t> keys;
};

// Working memory of one request at a time; each route() overwrites the last.
class RequestRouter {
 public:
  // A stable counting sort, with the keys cut into slices for the team. Throws std::bad_alloc.
  void route(const Request& request, const ThreadTeam::Lease& team);

  // All entries, partition by partition.
  [[nodiscard]] std::span<const Entry> entries() const noexcept { return {entries_.get(), size_}; }
  // Place of the partition's first entry; that of partition + 1 is one past its last.
  [[nodiscard]] std::size_t start(std::uint32_t partition) const noexcept {
    return starts_[partition];
  }

 private:
  void reserve(std::size_t keys);
  void count(const Request& request, std::size_t slice);
  void place(const Request& request, std::size_t slice);
  void turn_counts_into_places(std::uint32_t partitions);
  [[nodiscard]] std::size_t first_key(std::size_t slice) const noexcept;

  std::size_t capacity_ = 0;
  std::size_t size_ = 0;
  std::size_t slices_ = 1;
  std::unique_ptr<Entry[]> entries_;
  std::vector<std::size_t> starts_;
  std::vector<std::vector<std::size_t>> places_;  // [slice][partition]: count, then next place
};

}  // namespace embermesh

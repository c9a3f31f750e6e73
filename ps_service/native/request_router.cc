#include "request_router.h"

#include <algorithm>
#include <utility>

namespace embermesh {
namespace {

// Calls visit(table, first key, one past the last, offset of the first key) for every run of keys
// [first, last) of one table.
template <class Visit>
void for_each_run(const Request& request, std::size_t first, std::size_t last, const Visit& visit) {
  const std::size_t tables = request.schema.size();
  std::size_t start = 0;
  std::uint64_t offset = 0;
  for (std::size_t segment = 0; segment < request.counts.size() && start < last; ++segment) {
    const auto table = static_cast<std::uint32_t>(segment % tables);
    const std::size_t end = start + request.counts[segment];
    const std::size_t dim = request.schema.dim(table);
    const std::size_t from = std::max(start, first);
    const std::size_t to = std::min(end, last);
    if (from < to) visit(table, from, to, offset + (from - start) * dim);
    offset += (end - start) * dim;
    start = end;
  }
}

}  // namespace

void RequestRouter::reserve(std::size_t keys) {
  if (keys <= capacity_) return;
  entries_ = std::make_unique_for_overwrite<Entry[]>(keys);
  capacity_ = keys;
}

std::size_t RequestRouter::first_key(std::size_t slice) const noexcept {
  return size_ * slice / slices_;
}

void RequestRouter::route(const Request& request, const ThreadTeam::Lease& team) {
  size_ = 0;  // should memory fail
  reserve(request.keys.size());
  // Two for each, so that who comes late can do less; each costs a counter per partition.
  slices_ = team.size() == 1 ? 1 : 2 * team.size();
  if (places_.size() < slices_) places_.resize(slices_);
  starts_.resize(std::size_t{request.partitions} + 1);
  size_ = request.keys.size();
  team.run(slices_, [&](std::size_t slice) { count(request, slice); });
  turn_counts_into_places(request.partitions);
  team.run(slices_, [&](std::size_t slice) { place(request, slice); });
}

void RequestRouter::count(const Request& request, std::size_t slice) {
  places_[slice].assign(request.partitions, 0);
  std::size_t* const counts = places_[slice].data();
  for_each_run(request, first_key(slice), first_key(slice + 1),
               [&](std::uint32_t table, std::size_t from, std::size_t to, std::uint64_t) {
                 const std::uint64_t salt = request.schema.salt(table);
                 for (std::size_t i = from; i < to; ++i) {
                   ++counts[request.partition_of(row_hash(salt, request.keys[i]))];
                 }
               });
}

void RequestRouter::turn_counts_into_places(std::uint32_t partitions) {
  std::size_t next = 0;
  for (std::uint32_t p = 0; p < partitions; ++p) {
    starts_[p] = next;
    for (std::size_t slice = 0; slice < slices_; ++slice) {
      next += std::exchange(places_[slice][p], next);
    }
  }
  starts_[partitions] = next;
}

void RequestRouter::place(const Request& request, std::size_t slice) {
  std::size_t* const places = places_[slice].data();
  for_each_run(request, first_key(slice), first_key(slice + 1),
               [&](std::uint32_t table, std::size_t from, std::size_t to, std::uint64_t offset) {
                 const std::uint64_t salt = request.schema.salt(table);
                 const std::size_t dim = request.schema.dim(table);
                 for (std::size_t i = from; i < to; ++i, offset += dim) {
                   const std::uint64_t hash = row_hash(salt, request.keys[i]);
                   entries_[places[request.partition_of(hash)]++] = Entry(hash, table, offset);
                 }
               });
}

}  // namespace embermesh

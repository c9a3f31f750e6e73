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

std::size_t RequestRouter::first_key(std::size_t member) const noexcept {
  return size_ * member / team_;
}

void RequestRouter::route(const Request& request, std::size_t team, const RunTeam& run) {
  size_ = 0;  // should memory fail
  reserve(request.keys.size());
  if (places_.size() < team) places_.resize(team);
  for (std::size_t member = 0; member < team; ++member) {
    places_[member].assign(request.partitions, 0);
  }
  starts_.resize(std::size_t{request.partitions} + 1);
  size_ = request.keys.size();
  team_ = team;
  has_one_table_ = request.schema.size() == 1;
  run([&](std::size_t member) { count(request, member); });
  turn_counts_into_places(request.partitions, team);
  run([&](std::size_t member) { place(request, member); });
}

void RequestRouter::count(const Request& request, std::size_t member) {
  std::size_t* const counts = places_[member].data();
  for_each_run(request, first_key(member), first_key(member + 1),
               [&](std::uint32_t table, std::size_t from, std::size_t to, std::uint64_t) {
                 const std::uint64_t salt = request.schema.salt(table);
                 for (std::size_t i = from; i < to; ++i) {
                   ++counts[request.partition_of(row_hash(salt, request.keys[i]))];
                 }
               });
}

void RequestRouter::turn_counts_into_places(std::uint32_t partitions, std::size_t team) {
  std::size_t next = 0;
  for (std::uint32_t p = 0; p < partitions; ++p) {
    starts_[p] = next;
    for (std::size_t member = 0; member < team; ++member) {
      next += std::exchange(places_[member][p], next);
    }
  }
  starts_[partitions] = next;
}

void RequestRouter::place(const Request& request, std::size_t member) {
  std::size_t* const places = places_[member].data();
  for_each_run(request, first_key(member), first_key(member + 1),
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

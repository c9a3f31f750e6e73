#include "plan_builder.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>

#include "hashed_keys.h"

namespace embermesh {
namespace {

// Memory that is to be used again: clean sets cost more than a batch. Finding a variable of a
// thread costs a call, in a shared library, and GCC would rather make that call for every key than
// hold the address.
[[gnu::noinline]] UniqueSet& thread_set() {
  thread_local UniqueSet set;
  return set;
}

// What a builder works in; of its caller's thread, and no more than its largest batch needed.
struct Scratch {
  Array<std::uint64_t> keys;
  Array<std::uint16_t> shards;
  Array<std::int32_t> moved;
  std::vector<UniqueSet> part_sets;

  void reserve(std::size_t size) {
    if (moved.size() >= size) return;
    keys = Array<std::uint64_t>(size);
    shards = Array<std::uint16_t>(size);
    moved = Array<std::int32_t>(size);
  }
};

[[gnu::noinline]] Scratch& thread_scratch() {
  thread_local Scratch scratch;
  return scratch;
}

}  // namespace

EMBERMESH_SIMD_64 void hash_keys(std::uint64_t salt, std::span<const std::uint64_t> keys,
                                 std::uint64_t* __restrict hashes) noexcept {
  const std::uint64_t* const from = keys.data();
  const std::size_t size = keys.size();
  for (std::size_t i = 0; i < size; ++i) hashes[i] = row_hash(salt, from[i]);
}

PlanBuilder::PlanBuilder(const PlannerCore& core, const PlanInput& input,
                         const ThreadTeam::Lease& team, Plan& plan)
    : core_(core),
      config_(core.config),
      input_(input),
      team_(team),
      plan_(plan),
      partition_of_(static_cast<std::uint32_t>(config_.owners.size())),
      places_apart_(config_.shards + kCacheLine / sizeof(std::uint32_t)) {}

void PlanBuilder::build() {
  const std::size_t keys = input_.keys.size();
  cut();
  Scratch& scratch = thread_scratch();
  scratch.reserve(keys);
  keys_ = scratch.keys.data();
  shards_ = scratch.shards.data();
  moved_ = scratch.moved.data();
  places_ = std::make_unique<std::uint32_t[]>(pieces_.size() * places_apart_);
  plan_.inverse_ = Array<std::int32_t>(keys);

  team_.run(pieces_.size(), [this](std::size_t i) { number(pieces_[i]); });
  if (!sets_.empty()) find_all_twins();
  lay_out();
  team_.run(pieces_.size(), [this](std::size_t i) {
    place(pieces_[i]);
    if (pieces_[i].is_whole) renumber(pieces_[i]);
  });
  if (sets_.empty()) return;
  team_.run(pieces_.size(), [this](std::size_t i) {
    if (!pieces_[i].is_whole) renumber(pieces_[i]);
  });
}

void PlanBuilder::cut() {
  std::size_t base = 0;
  std::size_t sets = 0;
  for (std::uint32_t table = 0; table < core_.features_of.size(); ++table) {
    std::size_t keys = 0;
    for (const std::size_t f : core_.features_of[table]) {
      keys += static_cast<std::size_t>(input_.offsets[(f + 1) * input_.batch] -
                                       input_.offsets[f * input_.batch]);
    }
    const std::size_t parts = parts_of_table(keys, input_.keys.size(), team_.size());
    for (std::size_t part = 0; part < parts; ++part) {
      const std::size_t from = keys * part / parts;
      const std::size_t to = keys * (part + 1) / parts;
      pieces_.push_back({.table = table,
                         .part = static_cast<std::uint32_t>(part),
                         .is_whole = parts == 1,
                         .from = from,
                         .keys = to - from,
                         .base = base + from,
                         .set = sets + part});
    }
    if (parts > 1) sets += parts;
    base += keys;
  }
  if (sets == 0) return;
  std::vector<UniqueSet>& memory = thread_scratch().part_sets;
  if (memory.size() < sets) memory.resize(sets);
  sets_ = std::span(memory).first(sets);
}

template <class Visit>
void PlanBuilder::for_each_run(const Piece& piece, const Visit& visit) const {
  std::size_t skip = piece.from;
  std::size_t left = piece.keys;
  for (const std::size_t f : core_.features_of[piece.table]) {
    const auto start = static_cast<std::size_t>(input_.offsets[f * input_.batch]);
    const auto end = static_cast<std::size_t>(input_.offsets[(f + 1) * input_.batch]);
    const std::size_t skipped = std::min(skip, end - start);
    const std::size_t first = start + skipped;
    const std::size_t last = std::min(end, first + left);
    if (first < last) visit(first, last);
    skip -= skipped;
    left -= last - first;
  }
}

void PlanBuilder::number(Piece& piece) const {
  UniqueSet& set = piece.is_whole ? thread_set() : sets_[piece.set];
  const std::uint64_t salt = table_salt(piece.table);
  const std::uint16_t* const owners = config_.owners.data();
  std::uint64_t* const distinct = keys_ + piece.base;
  std::uint16_t* const shards = shards_ + piece.base;
  const bool is_first = piece.part == 0;  // all its keys are new to the table
  std::uint32_t* const counts = places(piece);
  const Partitioning partition_of = partition_of_;
  const auto visit_new = [=](std::uint32_t number, std::uint64_t hash) {
    shards[number] = owners[partition_of(hash)];
    if (is_first) ++counts[shards[number]];
  };
  const auto ask = [&set](auto hashes) { set.prefetch(hashes); };
  set.begin(piece.keys);
  for_each_run(piece, [&](std::size_t first, std::size_t last) {
    const auto keys = input_.keys.subspan(first, last - first);
    std::int32_t* const numbers = plan_.inverse_.data() + first;
    for_each_block(salt, keys, ask, [&](std::size_t i, auto block, const std::uint64_t* hashes) {
      set.number_block(block, hashes, numbers + i, distinct, visit_new);
    });
  });
  piece.size = set.size();
}

void PlanBuilder::find_all_twins() const {
  constexpr std::size_t kChunk = 4096;  // keys that one member looks for at a time
  struct Chunk {
    const Piece* piece;
    std::size_t first;
  };
  std::vector<Chunk> chunks;
  for (const Piece& piece : pieces_) {
    if (piece.part == 0) continue;
    for (std::size_t first = 0; first < piece.size; first += kChunk) {
      chunks.push_back({&piece, first});
    }
  }
  team_.run(chunks.size(), [&chunks, this](std::size_t i) {
    const auto& [piece, first] = chunks[i];
    find_twins(*piece, first, std::min(piece->size, first + kChunk));
  });
}

void PlanBuilder::find_twins(const Piece& piece, std::size_t first, std::size_t last) const {
  const std::uint64_t salt = table_salt(piece.table);
  const std::span<const std::uint64_t> keys(keys_ + piece.base + first, last - first);
  std::int32_t* const moved = moved_ + piece.base + first;
  std::fill_n(moved, keys.size(), 0);
  for (std::size_t part = 0; part < piece.part; ++part) {
    const Piece& earlier = (&piece)[static_cast<std::ptrdiff_t>(part) - piece.part];
    const UniqueSet& set = sets_[earlier.set];
    const std::uint64_t* const theirs = keys_ + earlier.base;
    const auto ask = [&set](auto hashes) { set.prefetch(hashes); };
    for_each_block(salt, keys, ask, [&](std::size_t i, auto block, const std::uint64_t* hashes) {
      std::array<std::int32_t, UniqueSet::kBlock> numbers;
      set.find_block(block, hashes, numbers.data(), theirs);
      for (std::size_t j = 0; j < block.size(); ++j) {
        if (moved[i + j] < 0 || numbers[j] < 0) continue;
        moved[i + j] = -1 - static_cast<std::int32_t>(earlier.base) - numbers[j];
      }
    });
  }
  const std::uint16_t* const shards = shards_ + piece.base + first;
  std::vector<std::uint32_t> counts(config_.shards);
  for (std::size_t i = 0; i < keys.size(); ++i) counts[shards[i]] += moved[i] < 0 ? 0 : 1;
  for (std::size_t shard = 0; shard < counts.size(); ++shard) {
    std::atomic_ref(places(piece)[shard]).fetch_add(counts[shard], std::memory_order_relaxed);
  }
}

void PlanBuilder::lay_out() const {
  const std::size_t tables = config_.dims.size();
  plan_.counts_.assign(config_.shards * tables, 0);
  plan_.value_floats_.assign(config_.shards, 0);
  for (const Piece& piece : pieces_) {
    const std::uint32_t* const counts = places(piece);
    for (std::size_t shard = 0; shard < config_.shards; ++shard) {
      plan_.counts_[shard * tables + piece.table] += counts[shard];
    }
  }
  std::vector<std::uint32_t> next(plan_.counts_.size());
  std::uint32_t keys = 0;
  for (std::size_t segment = 0; segment < next.size(); ++segment) {
    const std::size_t floats = plan_.counts_[segment] * std::size_t{config_.dims[segment % tables]};
    next[segment] = keys;
    keys += plan_.counts_[segment];
    plan_.total_floats_ += floats;
    plan_.value_floats_[segment / tables] += static_cast<std::int64_t>(floats);
  }
  for (const Piece& piece : pieces_) {
    std::uint32_t* const counts = places(piece);
    for (std::size_t shard = 0; shard < config_.shards; ++shard) {
      std::uint32_t& place = next[shard * tables + piece.table];
      place += std::exchange(counts[shard], place);
    }
  }
  plan_.unique_ = Array<std::uint64_t>(keys);
  if (core_.dim == 0) list_starts(keys);
}

void PlanBuilder::list_starts(std::size_t keys) const {
  plan_.starts_ = Array<std::size_t>(keys);
  std::size_t* to = plan_.starts_.data();
  std::size_t start = 0;
  for (std::size_t segment = 0; segment < plan_.counts_.size(); ++segment) {
    for (std::uint32_t i = 0; i < plan_.counts_[segment]; ++i) {
      *to++ = start;
      start += config_.dims[segment % config_.dims.size()];
    }
  }
}

void PlanBuilder::place(const Piece& piece) const {
  const std::uint64_t* const keys = keys_ + piece.base;
  const std::uint16_t* const shards = shards_ + piece.base;
  std::int32_t* const moved = moved_ + piece.base;
  std::uint32_t* const next = places(piece);
  for (std::size_t i = 0; i < piece.size; ++i) {
    if (piece.part > 0 && moved[i] < 0) continue;
    const std::uint32_t to = next[shards[i]]++;
    plan_.unique_.data()[to] = keys[i];
    moved[i] = static_cast<std::int32_t>(to);
  }
}

void PlanBuilder::renumber(const Piece& piece) const {
  std::int32_t* const moved = moved_ + piece.base;
  if (piece.part > 0) {
    for (std::size_t i = 0; i < piece.size; ++i) {
      if (moved[i] < 0) moved[i] = moved_[static_cast<std::size_t>(-1 - moved[i])];
    }
  }
  for_each_run(piece, [&](std::size_t first, std::size_t last) {
    for (std::int32_t& number : plan_.inverse_.items().subspan(first, last - first)) {
      number = moved[number];
    }
  });
}

}  // namespace embermesh

// The hot path: what pull, push and erase do with the entries of a request (request_pipeline.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "moment.h"
#include "push_usage.h"
#include "request_pipeline.h"
#include "simd.h"
#include "table_config.h"

namespace embermesh {

// What all verbs know.
class VerbContext {
 public:
  VerbContext(const Schema& schema, const Partitions& partitions,
              Partitioning partition_of) noexcept
      : schema_(&schema), partitions_(&partitions), partition_of_(partition_of) {}

  [[nodiscard]] const Schema& schema() const noexcept { return *schema_; }
  [[nodiscard]] RowStore& store(const Entry& entry) const noexcept {
    return partition(entry).store();
  }
  [[nodiscard]] Lifecycle& life(const Entry& entry) const noexcept {
    return partition(entry).life();
  }

  // Calls visit(store, table, entries, place of the first) for each run of entries of one table in
  // one partition.
  template <class Visit>
  void for_each_run(std::span<const Entry> entries, const Visit& visit) const {
    for (std::size_t first = 0; first < entries.size();) {
      const Entry& entry = entries[first];
      std::size_t end = first + 1;
      while (end < entries.size() && entries[end].table() == entry.table() &&
             partition_of_(entries[end].hash()) == partition_of_(entry.hash())) {
        ++end;
      }
      visit(store(entry), entry.table(), entries.subspan(first, end - first), first);
      first = end;
    }
  }

  // The first stage of every verb.
  void prefetch(std::span<const Entry> entries) const noexcept {
    for_each_run(entries, [](const RowStore& store, std::uint32_t table, auto run, std::size_t) {
      const FlatIndex& index = store.index(table);
      if (index.size() == 0) return;
      for (const Entry& entry : run) index.prefetch_home(entry.hash());
    });
  }

 private:
  [[nodiscard]] Partition& partition(const Entry& entry) const noexcept {
    return *(*partitions_)[partition_of_(entry.hash())];
  }

  const Schema* schema_;
  const Partitions* partitions_;
  Partitioning partition_of_;
};

// Entries that were not at home: missing, or in a line that is still on its way. They wait for two
// windows.
class Unsettled {
 public:
  struct Item {
    const Entry* entry;
    std::size_t place;  // in its unit
  };

  void add(const Entry& entry, std::size_t place) noexcept {
    items_[turn_][sizes_[turn_]++] = {&entry, place};
  }
  // Those that have waited long enough; valid until the turn after next.
  [[nodiscard]] std::span<const Item> next_turn() noexcept {
    turn_ ^= 1;
    return {items_[turn_].data(), std::exchange(sizes_[turn_], 0)};
  }

 private:
  std::size_t turn_ = 0;
  std::array<std::size_t, 2> sizes_{};
  std::array<std::array<Item, kWindow>, 2> items_;
};

// Writes the weights of each entry to values + offset. A missing key gets its initial weights, and
// with `insert` also a row if it is admitted; rows then become younger. settle() throws
// std::bad_alloc, only with `insert`.
class PullVerb {
 public:
  static constexpr std::size_t kUnitEntries = 128;  // their rows stay in the first-level cache

  // `floats`: what the request has in all.
  PullVerb(const VerbContext& context, const Moment& moment, bool insert, float* values,
           std::size_t floats) noexcept;
  ~PullVerb() { finish_streaming(); }

  void prefetch(std::span<const Entry> entries) const noexcept { context_.prefetch(entries); }
  void begin(std::size_t /*lane*/, std::span<const Entry> /*entries*/) const noexcept {}
  void find(std::size_t lane, std::span<const Entry> entries, std::size_t first) noexcept;
  void settle(std::size_t lane) {
    if (const auto items = unsettled_.next_turn(); !items.empty()) settle_each(lane, items);
  }
  void finish(std::size_t lane, std::span<const Entry> entries, std::size_t first) const noexcept;

 private:
  static constexpr std::size_t kManyFloats = std::size_t{1} << 18;  // 1 MiB: no cache of ours

  void settle_each(std::size_t lane, std::span<const Unsettled::Item> items);
  // The new row, or null if the key is not admitted.
  [[nodiscard]] const float* add(const Entry& entry) const;
  void see(const Entry& entry, Slot& slot) const noexcept {
    slot.meta = context_.life(entry).pulled(entry.table(), entry.hash(), slot.meta, moment_);
  }

  VerbContext context_;
  Moment moment_;
  bool insert_;
  bool sees_;  // rows become younger
  float* values_;
  bool streams_;
  Unsettled unsettled_;
  std::array<std::array<const float*, 2 * kUnitEntries>, 2> rows_;
};

// What became of the positions of a push: applied + missing = number of keys.
struct PushResult {
  std::uint64_t applied = 0;  // gradient used (alone, or summed with the key's others)
  std::uint64_t missing = 0;  // key not in the table: its gradient was skipped
};

// Working memory of one unit of a push, reused from unit to unit by one thread.
class PushScratch {
 public:
  // Starts a unit; `entries` stays valid while it lasts.
  void begin(std::span<const Entry> entries);

  // Adds the gradient of a row.
  void add(const Schema& schema, const RowUpdate& update) {
    for (std::size_t at = update.hash & mask_;; at = (at + 1) & mask_) {
      Seen& seen = seen_[at];
      if (seen.round != round_) {
        seen = Seen{round_, static_cast<std::uint32_t>(size_)};
        updates_[size_++] = update;
        prefetch_row(update.row, schema.row_bytes(update.table));
        return;
      }
      RowUpdate& known = updates_[seen.update];
      if (known.row == update.row) return add_to(known, update.grad, schema);
    }
  }

  // One per distinct row, in order of first occurrence.
  [[nodiscard]] std::span<const RowUpdate> updates() const noexcept {
    return {updates_.data(), size_};
  }

 private:
  struct Seen {
    std::uint32_t round;
    std::uint32_t update;  // place in updates_
  };

  // Adds a further gradient of the row of `target`.
  void add_to(RowUpdate& target, const float* grad, const Schema& schema);
  void make_room_for_sums(const Schema& schema);

  std::span<const Entry> entries_;
  std::vector<Seen> seen_;
  std::size_t mask_ = 0;
  std::uint32_t round_ = 0;
  std::vector<RowUpdate> updates_;
  std::size_t size_ = 0;
  std::vector<float> sums_;
  std::size_t sums_used_ = 0;
};

// Applies the gradients at grads + offset. The gradients of equal keys are summed in request order,
// in float32, and applied once.
class PushVerb {
 public:
  static constexpr std::size_t kUnitEntries = 0;  // a key's gradients must meet in one unit

  // `usage` and `step` must outlive the verb.
  PushVerb(const VerbContext& context, const Moment& moment, const PushUsage& usage,
           const float* grads, const TrainStep& step, std::span<PushScratch, 2> lanes) noexcept
      : context_(context),
        moment_(moment),
        usage_(&usage),
        sees_(context.schema().scores_pushes()),
        grads_(grads),
        step_(step),
        lanes_(lanes) {}

  void prefetch(std::span<const Entry> entries) const noexcept;
  void begin(std::size_t lane, std::span<const Entry> entries) { lanes_[lane].begin(entries); }
  void find(std::size_t lane, std::span<const Entry> entries, std::size_t first);
  void settle(std::size_t lane) {
    if (const auto items = unsettled_.next_turn(); !items.empty()) settle_each(lane, items);
  }
  void finish(std::size_t lane, std::span<const Entry> entries, std::size_t first) const noexcept;

  [[nodiscard]] const PushResult& result() const noexcept { return result_; }

 private:
  void settle_each(std::size_t lane, std::span<const Unsettled::Item> items);
  void add(std::size_t lane, const Entry& entry, float* row);
  void miss(const Entry& entry) noexcept;
  // Counts the key's samples on its row.
  void see(const Entry& entry, Slot& slot) const noexcept;

  VerbContext context_;
  Moment moment_;
  const PushUsage* usage_;
  bool sees_;  // rows gain usage
  const float* grads_;
  const TrainStep& step_;
  std::span<PushScratch, 2> lanes_;
  Unsettled unsettled_;
  PushResult result_;
};

// Removes keys and frees their rows.
class EraseVerb {
 public:
  static constexpr std::size_t kUnitEntries = 128;

  explicit EraseVerb(const VerbContext& context) noexcept : context_(context) {}

  void prefetch(std::span<const Entry> entries) const noexcept { context_.prefetch(entries); }
  void begin(std::size_t /*lane*/, std::span<const Entry> /*entries*/) const noexcept {}
  void find(std::size_t lane, std::span<const Entry> entries, std::size_t first) noexcept;
  void settle(std::size_t /*lane*/) const noexcept {}
  void finish(std::size_t /*lane*/, std::span<const Entry> /*entries*/,
              std::size_t /*first*/) const noexcept {}

  [[nodiscard]] std::uint64_t removed() const noexcept { return removed_; }

 private:
  VerbContext context_;
  std::uint64_t removed_ = 0;
};

}  // namespace embermesh

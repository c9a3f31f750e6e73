// The hot path: what pull, push and erase do with the entries of a request (request_pipeline.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "moment.h"
#include "push_usage.h"
#include "request_pipeline.h"
#include "table_config.h"

namespace embermesh {

// What became of the positions of a push: applied + missing = number of keys.
struct PushResult {
  std::uint64_t applied = 0;  // gradient used (alone, or summed with the key's others)
  std::uint64_t missing = 0;  // key not in the table: its gradient was skipped
};

// What all verbs know.
struct VerbContext {
  const Schema& schema;
  const Partitions& partitions;
  Partitioning partition_of;

  [[nodiscard]] Partition& partition(const Entry& entry) const noexcept {
    return *partitions[partition_of(entry.hash())];
  }
  [[nodiscard]] RowStore& store(const Entry& entry) const noexcept {
    return partition(entry).store();
  }
  [[nodiscard]] Lifecycle& life(const Entry& entry) const noexcept {
    return partition(entry).life();
  }
  void prefetch(std::span<const Entry> entries) const noexcept {
    for (const Entry& entry : entries) store(entry).prefetch(entry.table(), entry.hash());
  }
};

// Writes the weights of each entry to values + offset. A missing key gets its initial weights, and
// with `insert` also a row if it is admitted; rows then become younger. find() throws
// std::bad_alloc, only with `insert`.
class PullVerb {
 public:
  static constexpr std::size_t kUnitEntries = 128;  // their rows stay in the first-level cache

  PullVerb(const VerbContext& context, const Moment& moment, bool insert, float* values) noexcept
      : context_(context),
        moment_(moment),
        insert_(insert),
        sees_(insert && context.schema.evicts()),
        values_(values) {}

  void prefetch(std::span<const Entry> entries) const noexcept { context_.prefetch(entries); }
  void begin(std::size_t /*lane*/, std::span<const Entry> /*entries*/) const noexcept {}
  void find(std::size_t lane, std::span<const Entry> entries, std::size_t first);
  void finish(std::size_t lane, std::span<const Entry> entries, std::size_t first) noexcept;

 private:
  // The new row, or null if the key is not admitted.
  [[nodiscard]] float* add(const Entry& entry) const;
  void see(const Entry& entry, Slot& slot) const noexcept {
    slot.meta = context_.life(entry).pulled(entry.table(), entry.hash(), slot.meta, moment_);
  }

  VerbContext context_;
  Moment moment_;
  bool insert_;
  bool sees_;  // rows become younger
  float* values_;
  std::array<std::array<const float*, 2 * kUnitEntries>, 2> rows_;
};

// Working memory of one unit of a push, reused from unit to unit by one thread.
class PushScratch {
 public:
  // Starts a unit; `entries` stays valid while it lasts.
  void begin(std::span<const Entry> entries);

  // Adds the gradient of a row.
  void add(const Schema& schema, const RowUpdate& update);

  // One per distinct row, in order of first occurrence.
  [[nodiscard]] std::span<const RowUpdate> updates() const noexcept { return updates_; }

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
  std::uint32_t round_ = 0;
  std::vector<RowUpdate> updates_;
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
        sees_(context.schema.scores_pushes()),
        grads_(grads),
        step_(step),
        lanes_(lanes) {}

  void prefetch(std::span<const Entry> entries) const noexcept { context_.prefetch(entries); }
  void begin(std::size_t lane, std::span<const Entry> entries) { lanes_[lane].begin(entries); }
  void find(std::size_t lane, std::span<const Entry> entries, std::size_t first);
  void finish(std::size_t lane, std::span<const Entry> entries, std::size_t first) noexcept;

  [[nodiscard]] const PushResult& result() const noexcept { return result_; }

 private:
  // Counts the key's samples on its row.
  void see(const Entry& entry, Slot& slot) const noexcept;

  VerbContext context_;
  Moment moment_;
  const PushUsage* usage_;
  bool sees_;  // rows gain usage
  const float* grads_;
  const TrainStep& step_;
  std::span<PushScratch, 2> lanes_;
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
  void finish(std::size_t /*lane*/, std::span<const Entry> /*entries*/,
              std::size_t /*first*/) const noexcept {}

  [[nodiscard]] std::uint64_t removed() const noexcept { return removed_; }

 private:
  VerbContext context_;
  std::uint64_t removed_ = 0;
};

}  // namespace embermesh

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
  [[nodiscard]] Lifecycle& life(const Entry& entry) const noexcept {
    return (*partitions_)[partition_of_(entry.hash())]->life();
  }

  [[nodiscard]] const Partitions& partitions() const noexcept { return *partitions_; }

  // The first stage of every verb.
  [[gnu::always_inline]] void prefetch(const Run& run,
                                       std::span<const Entry> entries) const noexcept {
    const FlatIndex::Reader index(run.store->index());
    for (const Entry& entry : entries) index.prefetch(entry.hash());
  }

 private:
  const Schema* schema_;
  const Partitions* partitions_;
  Partitioning partition_of_;
};

// An entry of a unit that was not at home: missing, or in a line that is still on its way. It waits
// for the end of the unit.
struct Unsettled {
  const Entry* entry;
  RowStore* store;
  std::size_t place;  // in the unit
};

// A row that was added but has no content yet.
struct FreshRow {
  float* row;
  std::uint64_t hash;
  std::uint32_t table;
};

// Writes the weights of each entry to values + offset. A missing key gets its initial weights, and
// with `insert` also a row if it is admitted; rows then become younger. settle() throws
// std::bad_alloc, only with `insert`.
class PullVerb {
 public:
  static constexpr std::size_t kUnitEntries = 128;  // their rows stay in the second-level cache

  // `floats`: what the request has in all.
  PullVerb(const VerbContext& context, const Moment& moment, bool insert, float* values,
           std::size_t floats) noexcept;
  ~PullVerb() { finish_streaming(); }

  void prefetch(const Run& run, std::span<const Entry> entries) const noexcept {
    context_.prefetch(run, entries);
  }
  void begin(std::size_t /*half*/, std::span<const Entry> /*entries*/) const noexcept {}
  void find(std::size_t half, const Run& run, std::span<const Entry> entries, std::size_t first);
  void settle(std::size_t half);
  void finish(std::size_t half, const Run& run, std::span<const Entry> entries,
              std::size_t first) const noexcept;

  // All stages over all units.
  void run(const UnitSource& source, LockWindow& locks);

 private:
  static constexpr std::size_t kManyFloats = std::size_t{1} << 18;  // 1 MiB: no cache of ours

  void look_again(std::size_t half);
  // The row, or null if there is none.
  [[nodiscard]] const float* find_again(const Entry& entry, const RowStore& store) const noexcept;
  // The row, which if it is new is empty until fill_fresh(), or null if the key is not admitted.
  [[nodiscard]] const float* find_or_add(const Entry& entry, RowStore& store);
  void fill_fresh() noexcept;
  // What was not found at home waits for the end of its unit.
  void put_off(const Run& run, const Entry& entry, std::size_t place);
  void see(const Entry& entry, RowMeta& meta) const noexcept {
    if (!context_.schema().evicts(entry.table())) return;
    meta = context_.life(entry).pulled(entry.table(), entry.hash(), meta, moment_);
  }

  VerbContext context_;
  Moment moment_;
  bool insert_;
  bool sees_;  // rows become younger
  float* values_;
  bool streams_;
  std::vector<Unsettled> unsettled_;
  std::vector<FreshRow> fresh_;
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
           const float* grads, const TrainStep& step, std::span<PushScratch, 2> halves) noexcept
      : context_(context),
        moment_(moment),
        usage_(&usage),
        sees_(context.schema().scores_pushes()),
        grads_(grads),
        step_(step),
        halves_(halves) {}

  void prefetch(const Run& run, std::span<const Entry> entries) const noexcept;
  void begin(std::size_t half, std::span<const Entry> entries) { halves_[half].begin(entries); }
  void find(std::size_t half, const Run& run, std::span<const Entry> entries, std::size_t first);
  void settle(std::size_t half);
  void finish(std::size_t half, const Run& run, std::span<const Entry> entries,
              std::size_t first) const noexcept;
  void run(const UnitSource& source, LockWindow& locks);

  [[nodiscard]] const PushResult& result() const noexcept { return result_; }

 private:
  void add(std::size_t half, const Entry& entry, float* row);
  void prefetch_rows(std::size_t half, std::size_t first) const noexcept;
  void miss(const Entry& entry) noexcept;
  void put_off(const Run& run, const Entry& entry, std::size_t place);
  // Counts the key's samples on its row.
  void see(const Entry& entry, RowMeta& meta) const noexcept;

  VerbContext context_;
  Moment moment_;
  const PushUsage* usage_;
  bool sees_;  // rows gain usage
  const float* grads_;
  const TrainStep& step_;
  std::span<PushScratch, 2> halves_;
  std::vector<Unsettled> unsettled_;
  PushResult result_;
};

// Removes keys and frees their rows.
class EraseVerb {
 public:
  static constexpr std::size_t kUnitEntries = 128;

  explicit EraseVerb(const VerbContext& context) noexcept : context_(context) {}

  void prefetch(const Run& run, std::span<const Entry> entries) const noexcept {
    context_.prefetch(run, entries);
  }
  void begin(std::size_t /*half*/, std::span<const Entry> /*entries*/) const noexcept {}
  void find(std::size_t half, const Run& run, std::span<const Entry> entries,
            std::size_t first) noexcept;
  void settle(std::size_t /*half*/) const noexcept {}
  void finish(std::size_t /*half*/, const Run& /*run*/, std::span<const Entry> /*entries*/,
              std::size_t /*first*/) const noexcept {}
  void run(const UnitSource& source, LockWindow& locks);

  [[nodiscard]] std::uint64_t removed() const noexcept { return removed_; }

 private:
  VerbContext context_;
  std::uint64_t removed_ = 0;
};

}  // namespace embermesh

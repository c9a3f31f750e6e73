// How rows come and go in one partition: gates for new keys, the metadata of rows, and the account
// of both.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "admission.h"
#include "eviction.h"
#include "hash.h"
#include "moment.h"
#include "table_config.h"
#include "tombstone_log.h"

namespace embermesh {

// What happened to the keys of one table. Everything counts keys, or places in a request.
struct TableTally {
  std::uint64_t admitted = 0;  // training pulls that made a row
  std::uint64_t rejected = 0;  // training pulls of a key that was not admitted
  std::uint64_t dropped = 0;   // gradients of keys without a row
  std::array<std::uint64_t, kReasonNames.size()> evicted{};  // rows, by Reason
  std::uint64_t erased = 0;                                  // rows removed by request

  TableTally& operator+=(const TableTally& other) noexcept;
};

// Not thread-safe: its partition's lock guards it.
class Lifecycle {
 public:
  // `schema` must outlive it. `partitions` is the job's number.
  Lifecycle(const Schema& schema, std::uint32_t partitions);

  // A training pull found no row: shall there be one? `hash` stands for the key, here and below
  // (hash.h). Throws std::bad_alloc (the first time a table needs its gate), and then nothing has
  // changed.
  [[nodiscard]] bool admit(std::uint32_t table, std::uint64_t hash, const Moment& moment) {
    if (!schema_->shape(table).admits_all && !ask_gate(table, hash, moment)) {
      ++tallies_[table].rejected;
      return false;
    }
    ++tallies_[table].admitted;
    return true;
  }

  // A training pull of a row, new or old: the row's metadata after it.
  [[nodiscard]] RowMeta pulled(std::uint32_t table, std::uint64_t hash, RowMeta meta,
                               const Moment& moment) const noexcept {
    const EvictionPolicy& policy = *schema_->table(table).rows.eviction;
    if (policy.is_off()) return meta;
    return policy.on_pull(meta, moment.seconds, bits_of(hash, moment));
  }
  // A push to a row.
  [[nodiscard]] RowMeta pushed(std::uint32_t table, std::uint64_t hash, RowMeta meta, double shows,
                               double clicks, const Moment& moment) const noexcept {
    const EvictionPolicy& policy = *schema_->table(table).rows.eviction;
    if (!policy.scores_pushes()) return meta;
    return policy.on_push(meta, moment.seconds, shows, clicks, bits_of(hash, moment));
  }

  void dropped(std::uint32_t table) noexcept { ++tallies_[table].dropped; }
  void evicted(std::uint32_t table, std::uint64_t hash, Reason reason) noexcept {
    ++tallies_[table].evicted[static_cast<std::size_t>(reason)];
    bury(table, hash);
  }
  void erased(std::uint32_t table, std::uint64_t hash) noexcept {
    ++tallies_[table].erased;
    bury(table, hash);
  }
  // All rows were replaced, and nobody listed those that are gone.
  void replaced() noexcept { tombstones_.lose(); }

  [[nodiscard]] const TableTally& tally(std::size_t table) const noexcept {
    return tallies_[table];
  }
  [[nodiscard]] std::size_t gate_bytes(std::size_t table) const noexcept {
    return gates_[table] ? gates_[table]->bytes() : 0;
  }
  [[nodiscard]] TombstoneLog::Content drain_tombstones() noexcept { return tombstones_.drain(); }
  [[nodiscard]] std::size_t bytes() const noexcept;

 private:
  [[nodiscard]] bool ask_gate(std::uint32_t table, std::uint64_t hash, const Moment& moment);
  void bury(std::uint32_t table, std::uint64_t hash) noexcept {
    tombstones_.add(table, key_of(schema_->salt(table), hash));
  }
  // Decides how a row's usage is rounded: another draw for every row and step.
  [[nodiscard]] std::uint64_t bits_of(std::uint64_t hash, const Moment& moment) const noexcept;

  const Schema* schema_;
  std::uint32_t partitions_;
  std::vector<std::unique_ptr<AdmissionGate>> gates_;  // per table; null until one is needed
  std::vector<TableTally> tallies_;
  TombstoneLog tombstones_;
};

}  // namespace embermesh

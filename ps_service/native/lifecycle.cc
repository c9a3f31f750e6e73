#include "lifecycle.h"

#include "hash.h"

namespace embermesh {

TableTally& TableTally::operator+=(const TableTally& other) noexcept {
  admitted += other.admitted;
  rejected += other.rejected;
  dropped += other.dropped;
  erased += other.erased;
  for (std::size_t i = 0; i < evicted.size(); ++i) evicted[i] += other.evicted[i];
  return *this;
}

Lifecycle::Lifecycle(const Schema& schema, std::uint32_t partitions)
    : schema_(&schema), partitions_(partitions), gates_(schema.size()), tallies_(schema.size()) {}

bool Lifecycle::ask_gate(std::uint32_t table, std::uint64_t hash, const Moment& moment) {
  std::unique_ptr<AdmissionGate>& gate = gates_[table];
  if (gate == nullptr) gate = schema_->table(table).rows.admission->gate(partitions_);
  return gate->admit(schema_->row_bits(hash), moment);
}

std::uint64_t Lifecycle::bits_of(std::uint64_t hash, const Moment& moment) const noexcept {
  return mix64(schema_->row_bits(hash) + (moment.step + 1) * 0x9E3779B97F4A7C15ULL);
}

std::size_t Lifecycle::bytes() const noexcept {
  std::size_t sum = tombstones_.bytes();
  for (std::size_t table = 0; table < gates_.size(); ++table) sum += gate_bytes(table);
  return sum;
}

}  // namespace embermesh

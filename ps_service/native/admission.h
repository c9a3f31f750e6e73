// Which keys may have a row. A policy is what the user says about a table; a gate is its memory in
// one partition. To add one: a struct with kName, kParams, is_open() and gate() in admission.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "kinds.h"
#include "moment.h"

namespace embermesh {

// Not thread-safe: its partition's lock guards it.
class AdmissionGate {
 public:
  AdmissionGate() = default;
  AdmissionGate(const AdmissionGate&) = delete;
  AdmissionGate& operator=(const AdmissionGate&) = delete;
  virtual ~AdmissionGate() = default;

  // One occurrence of a key that has no row: may it have one now? `row_bits` is row_random of the
  // key, so a pure function of (seed, table, key).
  [[nodiscard]] virtual bool admit(std::uint64_t row_bits, const Moment& moment) noexcept = 0;
  [[nodiscard]] virtual std::size_t bytes() const noexcept = 0;
};

// Immutable, so free to share.
class AdmissionPolicy {
 public:
  AdmissionPolicy() = default;
  AdmissionPolicy(const AdmissionPolicy&) = delete;
  AdmissionPolicy& operator=(const AdmissionPolicy&) = delete;
  virtual ~AdmissionPolicy() = default;

  [[nodiscard]] virtual std::string_view name() const noexcept = 0;
  [[nodiscard]] virtual ParamMap params() const = 0;
  // True: every key is admitted at once, and there is no gate.
  [[nodiscard]] virtual bool is_open() const noexcept = 0;
  // The gate of one of `partitions` partitions. Throws std::bad_alloc.
  [[nodiscard]] virtual std::unique_ptr<AdmissionGate> gate(std::uint32_t partitions) const = 0;
};

std::vector<KindInfo> admission_kinds();

// Throws std::invalid_argument naming an unknown policy or a bad parameter.
std::shared_ptr<const AdmissionPolicy> make_admission(std::string_view name,
                                                      const ParamMap& params);

}  // namespace embermesh

#include "admission.h"

#include <cmath>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "counting_filter.h"
#include "hash.h"

namespace embermesh {
namespace {

class CountGate final : public AdmissionGate {
 public:
  CountGate(const CountingFilter::Shape& shape, std::uint32_t times)
      : filter_(shape), times_(times) {}

  [[nodiscard]] bool admit(std::uint64_t row_bits, const Moment& /*moment*/) noexcept override {
    return filter_.count(row_bits) >= times_;
  }
  [[nodiscard]] std::size_t bytes() const noexcept override {
    return sizeof *this + filter_.bytes();
  }

 private:
  CountingFilter filter_;
  std::uint32_t times_;
};

class ChanceGate final : public AdmissionGate {
 public:
  explicit ChanceGate(double p) : p_(p) {}

  [[nodiscard]] bool admit(std::uint64_t row_bits, const Moment& moment) noexcept override {
    const std::uint64_t bits = mix64(row_bits ^ mix64(moment.step + 0xA0761D6478BD642FULL));
    return static_cast<double>(bits >> 11) * 0x1.0p-53 < p_;
  }
  [[nodiscard]] std::size_t bytes() const noexcept override { return sizeof *this; }

 private:
  double p_;
};

struct Open {
  static constexpr std::string_view kName = "all";
  static constexpr std::array<Param, 0> kParams = {};
  explicit Open(std::span<const double> /*params*/) {}
  [[nodiscard]] static bool is_open() noexcept { return true; }
  [[nodiscard]] static std::unique_ptr<AdmissionGate> gate(std::uint32_t /*partitions*/) {
    return nullptr;
  }
};

// The n-th occurrence gets the row. An occurrence is a key of a training pull, so a key counts once
// per mini-batch. `keys` distinct keys of the whole table may be waiting; `error` is the share of
// them that may be admitted too early.
struct Count {
  static constexpr std::string_view kName = "count";
  static constexpr std::array kParams = {Param{"n", 2.0, 1.0, CountingFilter::kMaxCount},
                                         Param{"keys", 1e7, 1.0, 1e12},
                                         Param{"error", 0.01, 1e-6, 0.5}};
  explicit Count(std::span<const double> params)
      : times(params[0]), keys(params[1]), error(params[2]) {
    if (times != std::floor(times)) {
      throw std::invalid_argument("admission 'count': parameter 'n' is " + std::to_string(times) +
                                  ", must be a whole number");
    }
  }
  [[nodiscard]] bool is_open() const noexcept { return times == 1.0; }
  [[nodiscard]] std::unique_ptr<AdmissionGate> gate(std::uint32_t partitions) const {
    const double mean = keys / partitions;
    // Partitions differ by chance: four sigma more than the mean.
    const auto shape = CountingFilter::shape_for(mean + 4.0 * std::sqrt(mean) + 8.0, error);
    return std::make_unique<CountGate>(shape, static_cast<std::uint32_t>(times));
  }
  double times;
  double keys;
  double error;
};

// Each occurrence gets the row with probability p: a pure function of (seed, table, key, step).
struct Probability {
  static constexpr std::string_view kName = "probability";
  static constexpr std::array kParams = {Param{"p", 0.5, 0.0, 1.0}};
  explicit Probability(std::span<const double> params) : p(params[0]) {}
  [[nodiscard]] bool is_open() const noexcept { return p == 1.0; }
  [[nodiscard]] std::unique_ptr<AdmissionGate> gate(std::uint32_t /*partitions*/) const {
    return std::make_unique<ChanceGate>(p);
  }
  double p;
};

using AllPolicies = std::tuple<Open, Count, Probability>;

template <class P>
class PolicyOf final : public AdmissionPolicy {
 public:
  explicit PolicyOf(std::vector<double> values)
      : values_(std::move(values)), policy_(std::span<const double>(values_)) {}

  [[nodiscard]] std::string_view name() const noexcept override { return P::kName; }
  [[nodiscard]] ParamMap params() const override { return name_params(P::kParams, values_); }
  [[nodiscard]] bool is_open() const noexcept override { return policy_.is_open(); }
  [[nodiscard]] std::unique_ptr<AdmissionGate> gate(std::uint32_t partitions) const override {
    return policy_.gate(partitions);
  }

 private:
  std::vector<double> values_;
  P policy_;
};

}  // namespace

std::vector<KindInfo> admission_kinds() { return kinds_of<AllPolicies>(); }

std::shared_ptr<const AdmissionPolicy> make_admission(std::string_view name,
                                                      const ParamMap& params) {
  return make_kind<AllPolicies, AdmissionPolicy, PolicyOf>("admission", name, params);
}

}  // namespace embermesh

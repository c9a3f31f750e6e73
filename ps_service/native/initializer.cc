#include "initializer.h"

#include <bit>
#include <cmath>
#include <tuple>
#include <utility>

#include "portable_math.h"
#include "simd.h"

namespace embermesh {
namespace {

// `number`, below 2^53, as a double. From its two halves, each of them exact, by addition: few
// machines can convert a vector of 64-bit integers.
double exact_double(std::uint64_t number) noexcept {
  constexpr std::uint64_t k2To84 = 0x4530000000000000;  // as bits of a double
  constexpr std::uint64_t k2To52 = 0x4330000000000000;
  const auto high = std::bit_cast<double>(k2To84 | number >> 32);
  const auto low = std::bit_cast<double>(k2To52 | (number & 0xFFFFFFFFU));
  return (high - (0x1p84 + 0x1p52)) + low;
}

// Uniform in (0, 1), never an end point.
double open_unit(std::uint64_t bits) noexcept {
  return (exact_double(bits >> 11) + 0.5) * 0x1.0p-53;
}

struct Zeros {
  static constexpr std::string_view kName = "zeros";
  static constexpr std::array<Param, 0> kParams = {};
  explicit Zeros(std::span<const double> /*params*/) {}
  [[nodiscard]] float draw(std::uint64_t /*bits*/, std::size_t /*dim*/) const noexcept {
    return 0.0F;
  }
};

struct Constant {
  static constexpr std::string_view kName = "constant";
  static constexpr std::array kParams = {Param{"value", 0.0}};
  explicit Constant(std::span<const double> params) : value(static_cast<float>(params[0])) {}
  [[nodiscard]] float draw(std::uint64_t /*bits*/, std::size_t /*dim*/) const noexcept {
    return value;
  }
  float value;
};

struct Uniform {
  static constexpr std::string_view kName = "uniform";
  static constexpr std::array kParams = {Param{"low", -0.05}, Param{"high", 0.05}};
  explicit Uniform(std::span<const double> params) : low(params[0]), width(params[1] - params[0]) {
    if (width < 0.0) {
      throw std::invalid_argument("initializer 'uniform': parameter 'low' is above 'high'");
    }
  }
  [[nodiscard]] float draw(std::uint64_t bits, std::size_t /*dim*/) const noexcept {
    return static_cast<float>(low + width * open_unit(bits));
  }
  double low;
  double width;
};

struct Normal {
  static constexpr std::string_view kName = "normal";
  static constexpr std::array kParams = {Param{"mean", 0.0}, Param{"stddev", 0.05, 0.0}};
  explicit Normal(std::span<const double> params) : mean(params[0]), stddev(params[1]) {}
  [[nodiscard]] float draw(std::uint64_t bits, std::size_t /*dim*/) const noexcept {
    return static_cast<float>(mean + stddev * normal_quantile(open_unit(bits)));
  }
  double mean;
  double stddev;
};

// Normal, but within two standard deviations of the mean: what a redraw of everything beyond gives.
struct TruncatedNormal {
  static constexpr std::string_view kName = "truncated_normal";
  static constexpr std::array kParams = {Param{"mean", 0.0}, Param{"stddev", 0.05, 0.0}};
  explicit TruncatedNormal(std::span<const double> params) : mean(params[0]), stddev(params[1]) {}
  [[nodiscard]] float draw(std::uint64_t bits, std::size_t /*dim*/) const noexcept {
    constexpr double kBelow = 0.022750131948179195;  // share of a normal below -2 deviations
    const double p = kBelow + (1.0 - 2.0 * kBelow) * open_unit(bits);
    return static_cast<float>(mean + stddev * normal_quantile(p));
  }
  double mean;
  double stddev;
};

// Uniform in +- gain * sqrt(6 / (fan_in + fan_out)) (Glorot & Bengio 2010). The fan of an embedding
// is its dim on both sides: one row in, dim values out, and a table has no number of rows.
struct Xavier {
  static constexpr std::string_view kName = "xavier";
  static constexpr std::array kParams = {Param{"gain", 1.0, 0.0}};
  explicit Xavier(std::span<const double> params) : gain(params[0]) {}
  [[nodiscard]] float draw(std::uint64_t bits, std::size_t dim) const noexcept {
    const double limit = gain * std::sqrt(3.0 / static_cast<double>(dim));
    return static_cast<float>(limit * (2.0 * open_unit(bits) - 1.0));
  }
  double gain;
};

using AllInitializers = std::tuple<Zeros, Constant, Uniform, Normal, TruncatedNormal, Xavier>;

// Compiled for every width of vectors: columns are drawn side by side.
template <class I>
EMBERMESH_SIMD_64 void fill_row(const I& initializer, float* __restrict weights, std::size_t dim,
                                std::uint64_t row_bits) noexcept {
  constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15ULL;
  for (std::size_t column = 0; column < dim; ++column) {
    weights[column] = initializer.draw(mix64(row_bits + (column + 1) * kGolden), dim);
  }
}

template <class I>
class InitializerOf final : public InitializerKernel {
 public:
  explicit InitializerOf(std::vector<double> values)
      : values_(std::move(values)), initializer_(std::span<const double>(values_)) {}

  [[nodiscard]] std::string_view name() const noexcept override { return I::kName; }
  [[nodiscard]] ParamMap params() const override { return name_params(I::kParams, values_); }
  void fill(float* weights, std::size_t dim, std::uint64_t row_bits) const noexcept override {
    fill_row(initializer_, weights, dim, row_bits);
  }

 private:
  std::vector<double> values_;
  I initializer_;
};

}  // namespace

double normal_quantile(double p) noexcept {
  const double q = p - 0.5;
  if (std::abs(q) <= 0.425) {
    const double r = 0.180625 - q * q;
    const double above = ((59.109374720 * r + 159.29113202) * r + 50.434271938) * r + 3.3871327179;
    const double below = ((67.187563600 * r + 78.757757664) * r + 17.895169469) * r + 1.0;
    return q * above / below;
  }
  double r = std::sqrt(-portable_log(q < 0.0 ? p : 1.0 - p));
  double value;
  if (r <= 5.0) {
    r -= 1.6;
    value = (((0.17023821103 * r + 1.3067284816) * r + 2.7568153900) * r + 1.4234372777) /
            ((0.12021132975 * r + 0.73700164250) * r + 1.0);
  } else {
    r -= 5.0;
    value = (((0.017337203997 * r + 0.42868294337) * r + 3.0812263860) * r + 6.6579051150) /
            ((0.012258202635 * r + 0.24197894225) * r + 1.0);
  }
  return q < 0.0 ? -value : value;
}

std::vector<KindInfo> initializer_kinds() { return kinds_of<AllInitializers>(); }

std::shared_ptr<const InitializerKernel> make_initializer(std::string_view name,
                                                          const ParamMap& params) {
  return make_kind<AllInitializers, InitializerKernel, InitializerOf>("initializer", name, params);
}

}  // namespace embermesh

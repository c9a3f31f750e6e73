// Initial weights as a pure function of (seed, table, key, column).
//
// The same bits come out for any number of shards, any insertion order, any restart and any
// machine: only integer mixing and IEEE +, -, *, /, sqrt are used, never a libm function whose last
// digit is a matter of taste. To add one: a struct with kName, kParams and draw() in
// initializer.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "hash.h"
#include "kinds.h"

namespace embermesh {

// 64 random bits that belong to a row; column c of it draws from mix64(row_bits + c * odd).
[[nodiscard]] constexpr std::uint64_t row_random(std::uint64_t seed, std::uint64_t hash) noexcept {
  return mix64(hash ^ mix64(seed + 0xD1B54A32D192ED03ULL));
}

// A configured initializer. Immutable, so free to share.
class InitializerKernel {
 public:
  InitializerKernel() = default;
  InitializerKernel(const InitializerKernel&) = delete;
  InitializerKernel& operator=(const InitializerKernel&) = delete;
  virtual ~InitializerKernel() = default;

  [[nodiscard]] virtual std::string_view name() const noexcept = 0;
  [[nodiscard]] virtual ParamMap params() const = 0;
  // Writes weights[0, dim) of the row whose row_random is `row_bits`.
  virtual void fill(float* weights, std::size_t dim, std::uint64_t row_bits) const noexcept = 0;
};

std::vector<KindInfo> initializer_kinds();

// Throws std::invalid_argument naming an unknown initializer or a bad parameter.
std::shared_ptr<const InitializerKernel> make_initializer(std::string_view name,
                                                          const ParamMap& params);

// Quantile of the standard normal distribution for 0 < p < 1, within 1e-6 relative: Wichura's
// algorithm AS 241 (PPND7), with a logarithm of our own so that every machine agrees on every bit.
[[nodiscard]] double normal_quantile(double p) noexcept;

}  // namespace embermesh

// How the weights of a row lie in memory: float32, or 16 bits with stochastic rounding.
//
//   fp16: IEEE 754 binary16     bf16: the upper half of a float32
//
// A weight that lies between two 16-bit neighbours becomes the upper one with a probability equal
// to its distance from the lower one, so that many small updates add up on average to what float32
// would hold. A weight that is representable is never changed. Finite weights beyond the largest
// one become the largest one; infinity and NaN stay what they are. Integer operations and exact
// float32 and float64 ones only: the same bits with and without hardware conversion.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "hash.h"

namespace embermesh {

enum class WeightType : std::uint8_t { kFp32, kFp16, kBf16 };

// fp32, fp16, bf16. Throws std::invalid_argument naming what is allowed.
WeightType parse_weight_type(std::string_view name);
[[nodiscard]] std::string_view weight_type_name(WeightType type) noexcept;

// Units of 4 bytes that `dim` weights take; an odd 16-bit weight is followed by a zero.
[[nodiscard]] constexpr std::size_t weight_units(WeightType type, std::size_t dim) noexcept {
  return type == WeightType::kFp32 ? dim : (dim + 1) / 2;
}

// Where the rounding of a row's weights draws from: 64 bits of the row and step, and a 32-bit mixer
// over the columns, which vectorises where a 64-bit one does not.
struct Rounding {
  // Rounds half away from zero, whatever the column.
  [[nodiscard]] static constexpr Rounding nearest() noexcept { return {0, true}; }
  // `row_bits` belongs to the row (row_random), `step` to the push.
  [[nodiscard]] static constexpr Rounding stochastic(std::uint64_t row_bits,
                                                     std::uint64_t step) noexcept {
    return {mix64(row_bits ^ mix64(step + 0xA0761D6478BD642FULL)), false};
  }
  // 32 uniform bits.
  [[nodiscard]] constexpr std::uint32_t draw(std::uint32_t column) const noexcept {
    std::uint32_t x = static_cast<std::uint32_t>(bits) + column * 0x9E3779B9U;
    x = (x ^ (x >> 16)) * 0x7FEB352DU;  // "lowbias32" (Chris Wellons)
    x = (x ^ (x >> 15)) * 0x846CA68BU;
    x = x ^ (x >> 16) ^ static_cast<std::uint32_t>(bits >> 32);
    return to_nearest ? 0x80000000U : x;
  }

  std::uint64_t bits;
  bool to_nearest;
};

// `yes` or `no` without a branch: a loop over floats with one would not become vectors.
[[nodiscard]] constexpr std::uint32_t select(bool condition, std::uint32_t yes,
                                             std::uint32_t no) noexcept {
  const std::uint32_t mask = 0U - static_cast<std::uint32_t>(condition);
  return (yes & mask) | (no & ~mask);
}

[[nodiscard]] inline float from_fp16(std::uint16_t half) noexcept {
  const std::uint32_t sign = (half & 0x8000U) << 16;
  const std::uint32_t magnitude = half & 0x7FFFU;
  const std::uint32_t normal = (magnitude << 13) + (112U << 23);
  const std::uint32_t special = (magnitude << 13) | 0x7F800000U;  // infinity, NaN
  // Below 2^-14 the exponent field is zero and the rest counts units of 2^-24.
  const float units = static_cast<float>(static_cast<std::int32_t>(magnitude));
  const auto small = std::bit_cast<std::uint32_t>(units * 0x1p-24F);
  const std::uint32_t finite = select(magnitude < 0x0400U, small, normal);
  return std::bit_cast<float>(sign | select(magnitude >= 0x7C00U, special, finite));
}

// `random`: 32 uniform bits.
[[nodiscard]] inline std::uint16_t to_fp16(float value, std::uint32_t random) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  const bool is_small = magnitude < (113U << 23);  // below 2^-14
  const std::uint32_t normal =
      std::min(((magnitude + (random >> 19)) >> 13) - (112U << 10), std::uint32_t{0x7BFF});
  // Below it the unit is 2^-24 and the number of bits to drop rises as the exponent falls: 14 or
  // more. Draws have 32 bits, so what needs more than 31 loses its last ones first.
  const auto exponent = static_cast<std::int32_t>(std::min(magnitude >> 23, std::uint32_t{112}));
  const std::int32_t drop = 126 - exponent;
  const std::int32_t kept = std::min(drop, 31);
  const std::uint32_t significand =
      ((magnitude & 0x7FFFFFU) | 0x800000U) >> std::min(drop - kept, 31);
  const std::uint32_t small = (significand + (random >> (32 - kept))) >> kept;
  const std::uint32_t finite = select(is_small, small, normal);
  const std::uint32_t special = select(magnitude > 0x7F800000U, 0x7E00U, 0x7C00U);
  return static_cast<std::uint16_t>((bits >> 16 & 0x8000U) |
                                    select(magnitude >= 0x7F800000U, special, finite));
}

[[nodiscard]] inline float from_bf16(std::uint16_t half) noexcept {
  return std::bit_cast<float>(std::uint32_t{half} << 16);
}

[[nodiscard]] inline std::uint16_t to_bf16(float value, std::uint32_t random) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  const std::uint32_t finite = std::min((magnitude + (random >> 16)) >> 16, std::uint32_t{0x7F7F});
  const std::uint32_t special = select(magnitude > 0x7F800000U, 0x7FC0U, 0x7F80U);
  return static_cast<std::uint16_t>((bits >> 16 & 0x8000U) |
                                    select(magnitude >= 0x7F800000U, special, finite));
}

// Reads the `dim` weights at the head of `row` as float32.
void widen_weights(WeightType type, const float* row, std::size_t dim, float* out) noexcept;

// Writes `dim` weights to the head of `row`. `weights` may be `row` itself for fp32 only.
void narrow_weights(WeightType type, const float* weights, std::size_t dim, Rounding rounding,
                    float* row) noexcept;

}  // namespace embermesh

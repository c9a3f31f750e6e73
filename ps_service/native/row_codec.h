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
  static constexpr std::uint32_t kColumn = 0x9E3779B9U;  // 2^32 / golden ratio

  // Rounds half away from zero, whatever the column.
  [[nodiscard]] static constexpr Rounding nearest() noexcept { return {0, 0}; }
  // `row_bits` belongs to the row (row_random), `step` to the push.
  [[nodiscard]] static constexpr Rounding stochastic(std::uint64_t row_bits,
                                                     std::uint64_t step) noexcept {
    return {mix64(row_bits ^ mix64(step + 0xA0761D6478BD642FULL)), ~0U};
  }
  // 32 uniform bits.
  [[nodiscard]] constexpr std::uint32_t draw(std::uint32_t column) const noexcept {
    return draw_at(column * kColumn);
  }
  // The same; `place` is column * kColumn.
  [[nodiscard]] constexpr std::uint32_t draw_at(std::uint32_t place) const noexcept {
    std::uint32_t x = static_cast<std::uint32_t>(bits) + place;
    x = (x ^ (x >> 16)) * 0x7FEB352DU;  // "lowbias32" (Chris Wellons)
    x = (x ^ (x >> 15)) * 0x846CA68BU;
    x = x ^ (x >> 16) ^ static_cast<std::uint32_t>(bits >> 32);
    return (x & drawn) | (0x80000000U & ~drawn);
  }

  std::uint64_t bits;
  std::uint32_t drawn;  // which bits of a draw are random: all, or none
};

// What follows is meant for loops that become vectors. GCC turns a choice into branches as soon as
// it can guess one condition from another; it does not where a choice is a mask or, by value, the
// larger of two numbers.

[[nodiscard]] constexpr std::uint32_t select(bool condition, std::uint32_t yes,
                                             std::uint32_t no) noexcept {
  const std::uint32_t mask = 0U - static_cast<std::uint32_t>(condition);
  return (yes & mask) | (no & ~mask);
}

[[nodiscard]] constexpr std::int32_t lower(std::int32_t a, std::int32_t b) noexcept {
  return a < b ? a : b;
}

[[nodiscard]] constexpr std::int32_t higher(std::int32_t a, std::int32_t b) noexcept {
  return a > b ? a : b;
}

// `half`: 16 bits.
[[nodiscard]] inline float from_fp16(std::uint32_t half) noexcept {
  const std::uint32_t sign = (half & 0x8000U) << 16;
  const std::uint32_t magnitude = (half & 0x7FFFU) << 13;
  const std::uint32_t normal = magnitude + (112U << 23);
  const std::uint32_t special = magnitude | 0x7F800000U;  // infinity, NaN
  // Below 2^-14 the exponent field is zero and the rest counts units of 2^-24: those of a float32
  // in [2^-14, 2^-13) with the same last bits.
  const float above = std::bit_cast<float>(magnitude + (113U << 23));
  const auto small = std::bit_cast<std::uint32_t>(above - 0x1p-14F);
  const auto order = static_cast<std::int32_t>(magnitude);
  const std::uint32_t finite = select(order < 1 << 23, small, normal);
  return std::bit_cast<float>(sign | select(order >= 31 << 23, special, finite));
}

// 16 bits in 32, because a vector of 32-bit numbers stays one. `random`: 32 uniform bits.
[[nodiscard]] inline std::uint32_t to_fp16(float value, std::uint32_t random) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  const auto order = static_cast<std::int32_t>(magnitude);
  // Down to 2^-14, 13 bits are dropped. Below it the unit is 2^-24, so it is one more for each step
  // of the exponent, and the implicit bit of the significand is written out: as an exponent of 1,
  // which is how fp16 reads it if it stays. Draws have 32 bits: what needs more than 31 loses its
  // last ones first.
  const std::int32_t below = higher(113 - (order >> 23), 0);
  const std::uint32_t field = magnitude - (112U << 23) + (static_cast<std::uint32_t>(below) << 23);
  const std::int32_t more = lower(below, 18);
  const std::int32_t lost = lower(below - more, 31);
  const std::uint32_t rounded = ((field >> lost) + (random >> (19 - more))) >> (13 + more);
  const auto finite = static_cast<std::uint32_t>(lower(static_cast<std::int32_t>(rounded), 0x7BFF));
  const std::uint32_t special = select(order > 0x7F800000, 0x7E00U, 0x7C00U);
  return (bits >> 16 & 0x8000U) | select(order >= 0x7F800000, special, finite);
}

// `half`: 16 bits.
[[nodiscard]] inline float from_bf16(std::uint32_t half) noexcept {
  return std::bit_cast<float>(half << 16);
}

// As to_fp16.
[[nodiscard]] inline std::uint32_t to_bf16(float value, std::uint32_t random) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  const auto order = static_cast<std::int32_t>(magnitude);
  const std::uint32_t rounded = (magnitude + (random >> 16)) >> 16;
  const auto finite = static_cast<std::uint32_t>(lower(static_cast<std::int32_t>(rounded), 0x7F7F));
  const std::uint32_t special = select(order > 0x7F800000, 0x7FC0U, 0x7F80U);
  return (bits >> 16 & 0x8000U) | select(order >= 0x7F800000, special, finite);
}

// Reads the `dim` weights at the head of `row` as float32.
void widen_weights(WeightType type, const float* row, std::size_t dim, float* out) noexcept;

// Writes `dim` weights to the head of `row`. `weights` may be `row` itself for fp32 only.
void narrow_weights(WeightType type, const float* weights, std::size_t dim, Rounding rounding,
                    float* row) noexcept;

}  // namespace embermesh

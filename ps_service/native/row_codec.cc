#include "row_codec.h"

#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "simd.h"

namespace embermesh {
namespace {

constexpr std::string_view kNames[] = {"fp32", "fp16", "bf16"};

// Columns of a block, which the compiler turns into whole vectors.
constexpr std::size_t kLargest = 16;

// Rounding::draw's places of a block's columns.
struct Places {
  constexpr Places() noexcept {
    for (std::size_t i = 0; i < kLargest; ++i) {
      of[i] = static_cast<std::uint32_t>(i) * Rounding::kColumn;
    }
  }
  std::uint32_t of[kLargest] = {};
};

constexpr Places kPlaces;

// Converts `dim` columns by `block(first column, constant of a width)`, in blocks of the largest
// width that fits. The last block ends with the row and may repeat columns of the one before: it
// writes the same to them again, which is cheaper than columns one by one.
template <class Block>
[[gnu::always_inline]] inline void in_blocks(std::size_t dim, const Block& block) noexcept {
  const auto of_width = [&](auto width) __attribute__((always_inline)) {
    std::size_t column = 0;
    for (; column + width <= dim; column += width) block(column, width);
    if (column < dim) block(dim - width, width);
  };
  if (dim >= kLargest) return of_width(std::integral_constant<std::size_t, kLargest>());
  if (dim >= 8) return of_width(std::integral_constant<std::size_t, 8>());
  if (dim >= 4) return of_width(std::integral_constant<std::size_t, 4>());
  of_width(std::integral_constant<std::size_t, 1>());
}

// Loops that either convert or change the width of numbers: in one that did both, GCC would take
// half as many columns at a time. Halves go through memcpy, because a row is declared as floats.

template <std::size_t kWidth, float (*kConvert)(std::uint32_t)>
[[gnu::always_inline]] inline void widen_block(const std::byte* __restrict row,
                                               float* __restrict out) noexcept {
  std::uint32_t halves[kWidth];
  for (std::size_t i = 0; i < kWidth; ++i) {
    std::uint16_t half;
    std::memcpy(&half, row + i * sizeof half, sizeof half);
    halves[i] = half;
  }
  for (std::size_t i = 0; i < kWidth; ++i) out[i] = kConvert(halves[i]);
}

template <std::size_t kWidth, std::uint32_t (*kConvert)(float, std::uint32_t)>
[[gnu::always_inline]] inline void narrow_block(const float* __restrict weights,
                                                const Rounding& rounding, std::uint32_t place,
                                                std::byte* __restrict row) noexcept {
  std::uint32_t halves[kWidth];
  for (std::size_t i = 0; i < kWidth; ++i) {
    halves[i] = kConvert(weights[i], rounding.draw_at(place + kPlaces.of[i]));
  }
  for (std::size_t i = 0; i < kWidth; ++i) {
    const auto half = static_cast<std::uint16_t>(halves[i]);
    std::memcpy(row + i * sizeof half, &half, sizeof half);
  }
}

}  // namespace

template <float (*kConvert)(std::uint32_t)>
EMBERMESH_SIMD_16 static void widen(const std::byte* row, std::size_t dim, float* out) noexcept {
  in_blocks(dim, [&](std::size_t column, auto width) __attribute__((always_inline)) {
    widen_block<width, kConvert>(row + column * sizeof(std::uint16_t), out + column);
  });
}

template <std::uint32_t (*kConvert)(float, std::uint32_t)>
EMBERMESH_SIMD_16 static void narrow(const float* weights, std::size_t dim, const Rounding& given,
                                     std::byte* row) noexcept {
  const Rounding rounding = given;  // which no write to the row can change
  in_blocks(dim, [&](std::size_t column, auto width) __attribute__((always_inline)) {
    narrow_block<width, kConvert>(weights + column, rounding,
                                  static_cast<std::uint32_t>(column) * Rounding::kColumn,
                                  row + column * sizeof(std::uint16_t));
  });
  if (dim % 2 != 0) std::memset(row + dim * sizeof(std::uint16_t), 0, sizeof(std::uint16_t));
}

WeightType parse_weight_type(std::string_view name) {
  const auto* found = std::ranges::find(kNames, name);
  if (found != std::end(kNames)) return static_cast<WeightType>(found - std::begin(kNames));
  throw std::invalid_argument("weights: unknown type '" + std::string(name) +
                              "'; known are: fp32, fp16, bf16");
}

std::string_view weight_type_name(WeightType type) noexcept {
  return kNames[static_cast<std::size_t>(type)];
}

void widen_weights(WeightType type, const float* row, std::size_t dim, float* out) noexcept {
  if (type == WeightType::kFp32) {
    std::memcpy(out, row, dim * sizeof(float));
    return;
  }
  const auto* bytes = reinterpret_cast<const std::byte*>(row);
  if (type == WeightType::kFp16) {
    widen<from_fp16>(bytes, dim, out);
  } else {
    widen<from_bf16>(bytes, dim, out);
  }
}

void narrow_weights(WeightType type, const float* weights, std::size_t dim, Rounding rounding,
                    float* row) noexcept {
  if (type == WeightType::kFp32) {
    if (weights != row) std::memcpy(row, weights, dim * sizeof(float));
    return;
  }
  auto* bytes = reinterpret_cast<std::byte*>(row);
  if (type == WeightType::kFp16) {
    narrow<to_fp16>(weights, dim, rounding, bytes);
  } else {
    narrow<to_bf16>(weights, dim, rounding, bytes);
  }
}

}  // namespace embermesh

#include "row_codec.h"

#include <cstring>
#include <stdexcept>
#include <string>

#include "simd.h"

namespace embermesh {
namespace {

constexpr std::string_view kNames[] = {"fp32", "fp16", "bf16"};

}  // namespace

// Weights are converted in blocks of a fixed size, which the compiler turns into whole vectors; the
// last block is padded. Through memcpy, because a row is declared as floats.
constexpr std::size_t kBlock = 16;

template <float (*kConvert)(std::uint16_t)>
EMBERMESH_SIMD static void widen(const std::byte* row, std::size_t dim, float* out) noexcept {
  std::uint16_t halves[kBlock] = {};
  float block[kBlock];
  for (; dim >= kBlock; dim -= kBlock, row += sizeof halves, out += kBlock) {
    std::memcpy(halves, row, sizeof halves);
    for (std::size_t i = 0; i < kBlock; ++i) block[i] = kConvert(halves[i]);
    std::memcpy(out, block, sizeof block);
  }
  if (dim == 0) return;
  std::memcpy(halves, row, dim * sizeof halves[0]);
  for (std::size_t i = 0; i < kBlock; ++i) block[i] = kConvert(halves[i]);
  std::memcpy(out, block, dim * sizeof block[0]);
}

template <std::uint16_t (*kConvert)(float, std::uint32_t)>
static inline __attribute__((always_inline)) void narrow_block(const float* weights,
                                                               const Rounding& rounding,
                                                               std::size_t column,
                                                               std::uint16_t* halves) noexcept {
  for (std::size_t i = 0; i < kBlock; ++i) {
    halves[i] = kConvert(weights[i], rounding.draw(static_cast<std::uint32_t>(column + i)));
  }
}

template <std::uint16_t (*kConvert)(float, std::uint32_t)>
EMBERMESH_SIMD static void narrow(const float* weights, std::size_t dim, const Rounding& rounding,
                                  std::byte* row) noexcept {
  std::uint16_t halves[kBlock];
  std::size_t column = 0;
  for (; column + kBlock <= dim; column += kBlock, row += sizeof halves) {
    narrow_block<kConvert>(weights + column, rounding, column, halves);
    std::memcpy(row, halves, sizeof halves);
  }
  if (column == dim) return;
  float rest[kBlock] = {};
  std::memcpy(rest, weights + column, (dim - column) * sizeof rest[0]);
  narrow_block<kConvert>(rest, rounding, column, halves);
  const std::size_t padded =
      (dim - column + 1) / 2 * 2;  // what lies behind `rest` converts to zero
  std::memcpy(row, halves, padded * sizeof halves[0]);
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

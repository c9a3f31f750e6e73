#include "row_codec.h"

#include <cstring>
#include <stdexcept>
#include <string>

#include "simd.h"

namespace embermesh {
namespace {

constexpr std::string_view kNames[] = {"fp32", "fp16", "bf16"};

}  // namespace

// Halves are read and written in blocks through memcpy: a row is declared as floats.
constexpr std::size_t kBlock = 64;

EMBERMESH_SIMD static void widen_block(WeightType type, const std::uint16_t* halves,
                                       std::size_t count, float* out) noexcept {
  if (type == WeightType::kFp16) {
    for (std::size_t i = 0; i < count; ++i) out[i] = from_fp16(halves[i]);
  } else {
    for (std::size_t i = 0; i < count; ++i) out[i] = from_bf16(halves[i]);
  }
}

EMBERMESH_SIMD static void narrow_block(WeightType type, const float* weights, std::size_t count,
                                        const std::uint32_t* random,
                                        std::uint16_t* halves) noexcept {
  if (type == WeightType::kFp16) {
    for (std::size_t i = 0; i < count; ++i) halves[i] = to_fp16(weights[i], random[i]);
  } else {
    for (std::size_t i = 0; i < count; ++i) halves[i] = to_bf16(weights[i], random[i]);
  }
}

WeightType parse_weight_type(std::string_view name) {
  for (std::uint8_t type = 0; type < std::size(kNames); ++type) {
    if (kNames[type] == name) return WeightType{type};
  }
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
  for (std::size_t at = 0; at < dim; at += kBlock) {
    std::uint16_t halves[kBlock];
    const std::size_t count = std::min(kBlock, dim - at);
    std::memcpy(halves, bytes + at * sizeof halves[0], count * sizeof halves[0]);
    widen_block(type, halves, count, out + at);
  }
}

void narrow_weights(WeightType type, const float* weights, std::size_t dim, Rounding rounding,
                    float* row) noexcept {
  if (type == WeightType::kFp32) {
    if (weights != row) std::memcpy(row, weights, dim * sizeof(float));
    return;
  }
  auto* bytes = reinterpret_cast<std::byte*>(row);
  for (std::size_t at = 0; at < dim; at += kBlock) {
    std::uint16_t halves[kBlock];
    std::uint32_t random[kBlock];
    const std::size_t count = std::min(kBlock, dim - at);
    for (std::size_t i = 0; i < count; ++i) random[i] = rounding.draw(at + i);
    narrow_block(type, weights + at, count, random, halves);
    std::memcpy(bytes + at * sizeof halves[0], halves, count * sizeof halves[0]);
  }
  constexpr std::uint16_t kPad = 0;
  if (dim % 2 != 0) std::memcpy(bytes + dim * sizeof kPad, &kPad, sizeof kPad);
}

}  // namespace embermesh

#include "wire_codec.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "row_codec.h"
#include "simd.h"

namespace embermesh {
namespace {

static_assert(std::endian::native == std::endian::little, "the wire is little-endian");

constexpr std::string_view kNames[] = {"fp32", "fp16", "scaled-fp16"};
constexpr std::size_t kHalf = sizeof(std::uint16_t);
constexpr std::size_t kMaxWidth = sizeof(std::uint64_t);
constexpr std::size_t kTableHead = 1 + sizeof(std::uint64_t);  // width, smallest key

constexpr std::uint32_t kMagnitude = 0x7FFFFFFFU, kInfinity = 0x7F800000U;
constexpr std::uint32_t kLargestHalf = 0x7BFFU;
constexpr std::uint32_t kClips = 0x477FF000U;    // 65520: what is below rounds to 65504 by itself
constexpr std::uint32_t kFlushes = 0x33000000U;  // 2^-25: halfway to the smallest half, goes to 0

// Nearest binary16, ties to even, finite values cut to +-65504. Without a branch, so that a loop
// becomes vectors.
inline std::uint16_t nearest_half(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & kMagnitude;
  const std::uint32_t even = 0x0FFFU + (magnitude >> 13 & 1U);
  const std::uint32_t normal = std::min(((magnitude + even) >> 13) - (112U << 10), kLargestHalf);
  // Below 2^-14 a half is a number of 2^-24, which is the last bit of a float32 next to 0.5: adding
  // 0.5 rounds there.
  const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
  const std::uint32_t small = std::bit_cast<std::uint32_t>(shifted) - 0x3F000000U;
  const std::uint32_t finite = select(magnitude < (113U << 23), small, normal);
  const std::uint32_t special = select(magnitude > kInfinity, 0x7E00U, 0x7C00U);
  return static_cast<std::uint16_t>((bits >> 16 & 0x8000U) |
                                    select(magnitude >= kInfinity, special, finite));
}

[[noreturn]] void refuse_size(std::size_t actual, std::size_t expected) {
  throw std::invalid_argument("has " + std::to_string(actual) + " bytes, expected " +
                              std::to_string(expected));
}

[[noreturn]] void refuse_table(std::size_t table, const std::string& why) {
  throw std::invalid_argument("table " + std::to_string(table) + ": " + why);
}

// The largest finite magnitude.
inline float norm_of(const float* values, std::size_t count) noexcept {
  std::uint32_t largest = 0;  // magnitudes compare like their bits
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(values[i]) & kMagnitude;
    largest = std::max(largest, select(magnitude < kInfinity, magnitude, 0U));
  }
  return std::bit_cast<float>(largest);
}

}  // namespace

// Whole blocks have a constant length, which the compiler turns into vectors; the last one is
// padded with zeros, which count as nothing. Few blocks have anything to count, so they are only
// asked for their largest and smallest magnitude.
static inline __attribute__((always_inline)) void round_block(const float* values,
                                                              std::uint16_t* halves,
                                                              Rounded& rounded) noexcept {
  std::uint32_t largest = 0;
  std::uint32_t smallest = ~0U;  // less 1, so that zero is the largest
  for (std::size_t i = 0; i < kScaledBlock; ++i) {
    const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(values[i]) & kMagnitude;
    halves[i] = nearest_half(values[i]);
    largest = std::max(largest, magnitude);
    smallest = std::min(smallest, magnitude - 1);
  }
  if (largest < kClips && smallest >= kFlushes) return;
  for (std::size_t i = 0; i < kScaledBlock; ++i) {
    const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(values[i]) & kMagnitude;
    rounded.clipped += static_cast<std::uint64_t>(magnitude >= kClips && magnitude < kInfinity);
    rounded.flushed += static_cast<std::uint64_t>(magnitude - 1 < kFlushes);
  }
}

EMBERMESH_SIMD static void encode_halves(const float* values, std::size_t count, std::byte* out,
                                         Rounded& rounded) noexcept {
  std::uint16_t halves[kScaledBlock];
  for (; count >= kScaledBlock; count -= kScaledBlock) {
    round_block(values, halves, rounded);
    std::memcpy(out, halves, sizeof halves);
    values += kScaledBlock;
    out += sizeof halves;
  }
  if (count == 0) return;
  float rest[kScaledBlock] = {};
  std::memcpy(rest, values, count * sizeof(float));
  round_block(rest, halves, rounded);
  std::memcpy(out, halves, count * kHalf);
}

EMBERMESH_SIMD static void encode_scaled(const float* values, std::size_t count, std::byte* out,
                                         Rounded& rounded) noexcept {
  std::uint16_t halves[kScaledBlock];
  float scaled[kScaledBlock];
  while (count > 0) {
    const std::size_t size = std::min(count, kScaledBlock);
    std::memset(scaled, 0, sizeof scaled);
    std::memcpy(scaled, values, size * sizeof(float));
    const float largest = norm_of(scaled, kScaledBlock);
    const float norm = largest == 0.0F ? 1.0F : largest;  // all are zero, or infinite, or NaN
    std::uint32_t flushed = 0;  // by the division already: a quotient below the smallest float32
    for (std::size_t i = 0; i < kScaledBlock; ++i) {
      const float value = scaled[i];
      scaled[i] = value / norm * kKappa;  // divided, because 1 / norm may be infinite
      flushed += select(value != 0.0F, 1U, 0U) & select(scaled[i] == 0.0F, 1U, 0U);
    }
    rounded.flushed += flushed;
    round_block(scaled, halves, rounded);
    std::memcpy(out, &norm, sizeof norm);
    std::memcpy(out + sizeof norm, halves, size * kHalf);
    out += sizeof norm + size * kHalf;
    values += size;
    count -= size;
  }
}

// Scaling by a power of two comes first and is exact, so that a value is rounded once.
EMBERMESH_SIMD static void decode_halves(const std::byte* data, std::size_t count, float power,
                                         float norm, float* out) noexcept {
  std::uint16_t halves[kScaledBlock] = {};
  float block[kScaledBlock];
  for (; count >= kScaledBlock; count -= kScaledBlock) {
    std::memcpy(halves, data, sizeof halves);
    for (std::size_t i = 0; i < kScaledBlock; ++i) out[i] = from_fp16(halves[i]) * power * norm;
    data += sizeof halves;
    out += kScaledBlock;
  }
  if (count == 0) return;
  std::memcpy(halves, data, count * kHalf);
  for (std::size_t i = 0; i < kScaledBlock; ++i) block[i] = from_fp16(halves[i]) * power * norm;
  std::memcpy(out, block, count * sizeof(float));
}

static void decode_scaled(const std::byte* data, std::span<float> out) {
  for (std::size_t at = 0; at < out.size(); at += kScaledBlock) {
    const std::size_t size = std::min(out.size() - at, kScaledBlock);
    float norm = 0.0F;
    std::memcpy(&norm, data, sizeof norm);
    if (!(norm > 0.0F) || !std::isfinite(norm)) {
      throw std::invalid_argument("block " + std::to_string(at / kScaledBlock) + " has norm " +
                                  std::to_string(norm) + ", must be above 0 and finite");
    }
    decode_halves(data + sizeof norm, size, 1.0F / kKappa, norm, out.data() + at);
    data += sizeof norm + size * kHalf;
  }
}

ValueCoding parse_value_coding(std::string_view name) {
  const auto* found = std::ranges::find(kNames, name);
  if (found != std::end(kNames)) return static_cast<ValueCoding>(found - std::begin(kNames));
  throw std::invalid_argument("coding: unknown value coding '" + std::string(name) +
                              "'; known are: fp32, fp16, scaled-fp16");
}

std::vector<std::string> value_coding_names() { return {std::begin(kNames), std::end(kNames)}; }

std::size_t encoded_bytes(ValueCoding coding, std::size_t count) noexcept {
  if (coding == ValueCoding::kFp32) return count * sizeof(float);
  const std::size_t blocks = (count + kScaledBlock - 1) / kScaledBlock;
  return count * kHalf + (coding == ValueCoding::kScaledFp16 ? blocks * sizeof(float) : 0);
}

Rounded encode_values(ValueCoding coding, std::span<const float> values, std::byte* out) noexcept {
  Rounded rounded;
  if (coding == ValueCoding::kFp16) {
    encode_halves(values.data(), values.size(), out, rounded);
  } else if (coding == ValueCoding::kScaledFp16) {
    encode_scaled(values.data(), values.size(), out, rounded);
  } else if (!values.empty()) {
    std::memcpy(out, values.data(), values.size_bytes());
  }
  return rounded;
}

void decode_values(ValueCoding coding, std::span<const std::byte> data, std::span<float> out) {
  const std::size_t expected = encoded_bytes(coding, out.size());
  if (data.size() != expected) refuse_size(data.size(), expected);
  if (coding == ValueCoding::kFp16) {
    decode_halves(data.data(), out.size(), 1.0F, 1.0F, out.data());
  } else if (coding == ValueCoding::kScaledFp16) {
    decode_scaled(data.data(), out);
  } else if (!out.empty()) {
    std::memcpy(out.data(), data.data(), data.size());
  }
}

// Widths are constants here. Eight bytes are moved for a key wherever there are as many, which
// takes one instruction; those that are too many belong to the keys behind it, and are written
// next.
template <std::size_t kWidth>
static void put_differences(std::span<const std::uint64_t> keys, std::uint64_t smallest,
                            char* out) noexcept {
  const std::size_t bytes = keys.size() * kWidth;
  std::size_t i = 0;
  for (; i * kWidth + kMaxWidth <= bytes; ++i) {
    const std::uint64_t difference = keys[i] - smallest;
    std::memcpy(out + i * kWidth, &difference, kMaxWidth);
  }
  for (; i < keys.size(); ++i) {
    const std::uint64_t difference = keys[i] - smallest;
    std::memcpy(out + i * kWidth, &difference, kWidth);
  }
}

template <std::size_t kWidth>
static void get_differences(std::span<const std::byte> data, std::uint64_t smallest,
                            std::span<std::uint64_t> keys) noexcept {
  constexpr std::uint64_t kMask = kWidth == 0 ? 0 : ~0ULL >> (64 - 8 * std::max(kWidth, 1UL));
  std::uint64_t difference = 0;
  std::size_t i = 0;
  for (; i < keys.size() && i * kWidth + kMaxWidth <= data.size(); ++i) {
    std::memcpy(&difference, data.data() + i * kWidth, kMaxWidth);
    keys[i] = smallest + (difference & kMask);
  }
  for (; i < keys.size(); ++i) {
    difference = 0;
    std::memcpy(&difference, data.data() + i * kWidth, kWidth);
    keys[i] = smallest + difference;
  }
}

// Calls body<width>() for a width of 0 to 8.
template <class Body>
static void with_width(std::size_t width, Body body) {
  [&]<std::size_t... kWidths>(std::index_sequence<kWidths...>) {
    (void)((width == kWidths && (body.template operator()<kWidths>(), true)) || ...);
  }(std::make_index_sequence<kMaxWidth + 1>());
}

static std::uint64_t total(std::span<const std::uint32_t> counts) noexcept {
  return std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
}

std::string encode_keys(std::span<const std::uint32_t> counts,
                        std::span<const std::uint64_t> keys) {
  if (total(counts) != keys.size()) {
    throw std::invalid_argument("counts: add up to " + std::to_string(total(counts)) +
                                ", but there are " + std::to_string(keys.size()) + " keys");
  }
  std::string out;
  out.reserve(counts.size() * kTableHead + keys.size() * sizeof(std::uint64_t));
  for (const std::uint32_t count : counts) {
    if (count == 0) continue;
    const auto table = keys.first(count);
    keys = keys.subspan(count);
    const auto range = std::ranges::minmax(table);
    const std::uint64_t smallest = range.min;
    const auto bits = static_cast<std::size_t>(std::bit_width(range.max - smallest));
    const std::size_t width = std::max((bits + 7) / 8, std::size_t{count > 1});
    out += static_cast<char>(width);
    out.append(reinterpret_cast<const char*>(&smallest), sizeof smallest);
    const std::size_t at = out.size();
    out.resize(at + count * width);
    with_width(width, [&]<std::size_t kWidth>() {
      put_differences<kWidth>(table, smallest, out.data() + at);
    });
  }
  return out;
}

std::size_t count_keys(std::span<const std::uint32_t> counts, std::size_t bytes) {
  const std::uint64_t keys = total(counts);
  if (keys > bytes) {
    throw std::invalid_argument("has " + std::to_string(bytes) + " bytes, which can't hold " +
                                std::to_string(keys) + " keys");
  }
  return keys;
}

// Takes the next table's keys from the front of `data`.
static void decode_table(std::size_t table, std::span<const std::byte>& data,
                         std::span<std::uint64_t> keys) {
  if (data.size() < kTableHead) refuse_table(table, "the data ends before its keys");
  const auto width = std::to_integer<std::size_t>(data[0]);
  std::uint64_t smallest = 0;
  std::memcpy(&smallest, data.data() + 1, sizeof smallest);
  data = data.subspan(kTableHead);
  const std::size_t least = keys.size() > 1 ? 1 : 0;
  if (width < least || width > kMaxWidth) {
    refuse_table(
        table, std::to_string(width) + " bytes a key, must be " + std::to_string(least) + " to 8");
  }
  const std::size_t bytes = keys.size() * width;
  if (data.size() < bytes) {
    refuse_table(table, "has " + std::to_string(data.size()) + " bytes of keys, expected " +
                            std::to_string(bytes));
  }
  with_width(width, [&]<std::size_t kWidth>() {
    get_differences<kWidth>(data.first(bytes), smallest, keys);
  });
  data = data.subspan(bytes);
}

void decode_keys(std::span<const std::uint32_t> counts, std::span<const std::byte> data,
                 std::span<std::uint64_t> out) {
  for (std::size_t table = 0; table < counts.size(); ++table) {
    if (counts[table] == 0) continue;
    decode_table(table, data, out.first(counts[table]));
    out = out.subspan(counts[table]);
  }
  if (!data.empty()) {
    throw std::invalid_argument("has " + std::to_string(data.size()) + " bytes too many");
  }
}

}  // namespace embermesh

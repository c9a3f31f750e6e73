#include "xxh64.h"

#include <bit>
#include <cstring>

namespace embermesh {
namespace {

constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87ULL;
constexpr uint64_t kPrime2 = 0xC2B2AE3D27D4EB4FULL;
constexpr uint64_t kPrime3 = 0x165667B19E3779F9ULL;
constexpr uint64_t kPrime4 = 0x85EBCA77C2B2AE63ULL;
constexpr uint64_t kPrime5 = 0x27D4EB2F165667C5ULL;
constexpr size_t kStripe = 32;

template <typename Word>
Word ReadLittleEndian(const uint8_t* at) noexcept {
  Word word;
  std::memcpy(&word, at, sizeof(word));
  if constexpr (std::endian::native == std::endian::big) {
    Word swapped = 0;
    for (size_t i = 0; i < sizeof(word); ++i) {
      swapped = static_cast<Word>((swapped << 8) | ((word >> (8 * i)) & 0xFF));
    }
    word = swapped;
  }
  return word;
}

uint64_t Round(uint64_t lane, uint64_t input) noexcept {
  return std::rotl(lane + input * kPrime2, 31) * kPrime1;
}

uint64_t MergeLane(uint64_t hash, uint64_t lane) noexcept {
  return (hash ^ Round(0, lane)) * kPrime1 + kPrime4;
}

// Four lanes over whole 32-byte stripes; moves `at` behind them.
uint64_t HashStripes(const uint8_t*& at, const uint8_t* end, uint64_t seed) noexcept {
  uint64_t lanes[4] = {seed + kPrime1 + kPrime2, seed + kPrime2, seed, seed - kPrime1};
  while (static_cast<size_t>(end - at) >= kStripe) {
    for (uint64_t& lane : lanes) {
      lane = Round(lane, ReadLittleEndian<uint64_t>(at));
      at += sizeof(uint64_t);
    }
  }
  uint64_t hash = std::rotl(lanes[0], 1) + std::rotl(lanes[1], 7) + std::rotl(lanes[2], 12) +
                  std::rotl(lanes[3], 18);
  for (const uint64_t lane : lanes) hash = MergeLane(hash, lane);
  return hash;
}

uint64_t Avalanche(uint64_t hash) noexcept {
  hash = (hash ^ (hash >> 33)) * kPrime2;
  hash = (hash ^ (hash >> 29)) * kPrime3;
  return hash ^ (hash >> 32);
}

}  // namespace

uint64_t Xxh64(const uint8_t* data, size_t size, uint64_t seed) noexcept {
  const uint8_t* at = data;
  const uint8_t* end = data + size;
  uint64_t hash = size >= kStripe ? HashStripes(at, end, seed) : seed + kPrime5;
  hash += size;
  for (; end - at >= 8; at += 8) {
    hash = std::rotl(hash ^ Round(0, ReadLittleEndian<uint64_t>(at)), 27) * kPrime1 + kPrime4;
  }
  if (end - at >= 4) {
    hash ^= ReadLittleEndian<uint32_t>(at) * kPrime1;
    hash = std::rotl(hash, 23) * kPrime2 + kPrime3;
    at += 4;
  }
  for (; at < end; ++at) hash = std::rotl(hash ^ (*at * kPrime5), 11) * kPrime1;
  return Avalanche(hash);
}

}  // namespace embermesh

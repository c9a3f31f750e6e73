#include "counting_filter.h"

#include <algorithm>
#include <cmath>

#include "hash.h"

namespace embermesh {
namespace {

constexpr std::uint32_t kCells = 128;  // counters per block
constexpr std::uint32_t kMaxProbes = 8;
constexpr std::uint32_t kMaxCellsPerKey = 128;

}  // namespace

// A block holds a Poisson number of keys. Each of its counters is free of j keys with probability
// (1 - 1/128)^(k j); a new key is taken for a known one if all of its k counters are not free.
double CountingFilter::false_share(double keys_per_block, std::uint32_t probes) noexcept {
  const double clean = std::pow(1.0 - 1.0 / kCells, probes);
  double probability = std::exp(-keys_per_block);  // of j keys
  double free = 1.0;
  double share = 0.0;
  const int last = static_cast<int>(keys_per_block + 12.0 * std::sqrt(keys_per_block) + 16.0);
  for (int j = 1; j <= last; ++j) {
    probability *= keys_per_block / j;
    free *= clean;
    share += probability * std::pow(1.0 - free, probes);
  }
  return share;
}

CountingFilter::Shape CountingFilter::shape_for(double keys, double error) {
  for (std::uint32_t cells = 2;; ++cells) {  // per key; whole numbers, so that all machines agree
    const auto probes = std::clamp(static_cast<std::uint32_t>(cells * 0.7), 1U, kMaxProbes);
    if (cells < kMaxCellsPerKey && false_share(double{kCells} / cells, probes) > error) continue;
    return {static_cast<std::size_t>(std::ceil(keys * cells / kCells)), probes,
            static_cast<std::uint64_t>(std::ceil(keys))};
  }
}

std::uint32_t CountingFilter::count(std::uint64_t hash) noexcept {
  const std::uint64_t mixed = mix64(hash + 0x9E3779B97F4A7C15ULL);
  // The high half scaled to a block; the counters come from another mix, or keys of one block would
  // share counters more often than chance.
  Block& block = blocks_[((mixed >> 32) * blocks_.size()) >> 32];
  std::uint64_t places = mix64(mixed);
  std::array<std::uint32_t, kMaxProbes> cells{};
  std::uint32_t least = kMaxCount;
  for (std::uint32_t i = 0; i < shape_.probes; ++i, places >>= 7) {
    cells[i] = places % kCells;
    least = std::min(
        least,
        static_cast<std::uint32_t>(block.words[cells[i] / 16] >> (cells[i] % 16 * 4)) & kMaxCount);
  }
  if (least == kMaxCount) return least;
  for (std::uint32_t i = 0; i < shape_.probes; ++i) {
    std::uint64_t& word = block.words[cells[i] / 16];
    const std::uint32_t shift = cells[i] % 16 * 4;
    if (((word >> shift) & kMaxCount) == least) word += std::uint64_t{1} << shift;
  }
  if (least == 0) age_by_one_key();
  return least + 1;
}

void CountingFilter::age_by_one_key() noexcept {
  if (++new_keys_ <= shape_.capacity) return;
  constexpr std::uint64_t kLowThreeBits = 0x7777777777777777ULL;
  for (owed_ += blocks_.size(); owed_ >= shape_.capacity; owed_ -= shape_.capacity) {
    for (std::uint64_t& word : blocks_[hand_].words) word = (word >> 1) & kLowThreeBits;
    hand_ = hand_ + 1 == blocks_.size() ? 0 : hand_ + 1;
  }
}

}  // namespace embermesh

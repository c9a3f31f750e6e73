#include "unique_set.h"

namespace embermesh {
namespace {

// All ones if the upper bit is set, else zero.
constexpr std::uint64_t spread_sign(std::uint64_t x) noexcept {
  return static_cast<std::uint64_t>(static_cast<std::int64_t>(x) >> 63);
}

struct Known {
  const std::uint64_t* cells;
  std::uint64_t mask;
  std::uint64_t base;
  std::uint64_t size;
  const std::uint64_t* distinct;
};

// See UniqueSet::look_up. Conditions are computed as masks: of a comparison a compiler would make a
// branch, and of a branch no vectors.
EMBERMESH_SIMD void look_up_keys(const Known& known, std::size_t size,
                                 const std::uint64_t* __restrict keys,
                                 const std::uint64_t* __restrict hashes,
                                 std::int32_t* __restrict numbers) noexcept {
  constexpr std::uint64_t kHalf = 0xFFFFFFFF;
  const Known set = known;
  for (std::size_t i = 0; i < size; ++i) {
    const std::uint64_t cell = set.cells[hashes[i] & set.mask];
    const std::uint64_t number = ((cell >> 32) - set.base) & kHalf;
    const std::uint64_t is_taken = spread_sign(number - set.size);
    const std::uint64_t key = set.distinct[number & is_taken];
    const std::uint64_t differs =
        ~is_taken | ((cell ^ (hashes[i] >> 32)) & kHalf) | (key ^ keys[i]);
    numbers[i] = static_cast<std::int32_t>(number | spread_sign(differs | -differs));
  }
}

}  // namespace

void UniqueSet::look_up(std::span<const std::uint64_t> keys, const std::uint64_t* hashes,
                        std::int32_t* numbers, const std::uint64_t* distinct) const noexcept {
  look_up_keys({cells_.data(), mask_, base_, size_, distinct}, keys.size(), keys.data(), hashes,
               numbers);
}

}  // namespace embermesh

#include "crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define EMBERMESH_CRC_SSE42 1
#include <nmmintrin.h>
#endif

namespace embermesh {
namespace {

using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

// tables[k][b]: the checksum of byte b followed by k zero bytes.
constexpr Tables make_tables() {
  constexpr std::uint32_t kReversedPolynomial = 0x82F63B78U;
  Tables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1U) * kReversedPolynomial);
    tables[0][byte] = crc;
  }
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    for (std::size_t k = 1; k < tables.size(); ++k) {
      const std::uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 255U];
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();

std::uint32_t extend_portable(std::uint32_t crc, const std::byte* data, std::size_t size) noexcept {
  for (; size >= 8; data += 8, size -= 8) {
    std::uint32_t next = crc;
    for (unsigned i = 0; i < 4; ++i) next ^= std::to_integer<std::uint32_t>(data[i]) << (8 * i);
    crc = kTables[7][next & 255U] ^ kTables[6][(next >> 8) & 255U] ^
          kTables[5][(next >> 16) & 255U] ^ kTables[4][next >> 24];
    for (std::size_t i = 4; i < 8; ++i) {
      crc ^= kTables[7 - i][std::to_integer<std::size_t>(data[i])];
    }
  }
  for (; size > 0; ++data, --size) {
    crc = (crc >> 8) ^ kTables[0][(crc ^ std::to_integer<std::uint32_t>(*data)) & 255U];
  }
  return crc;
}

#ifdef EMBERMESH_CRC_SSE42
__attribute__((target("sse4.2"))) std::uint32_t extend_sse42(std::uint32_t crc,
                                                             const std::byte* data,
                                                             std::size_t size) noexcept {
  std::uint64_t wide = crc;
  for (; size >= 8; data += 8, size -= 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, data, sizeof word);
    wide = _mm_crc32_u64(wide, word);
  }
  auto narrow = static_cast<std::uint32_t>(wide);
  for (; size > 0; ++data, --size) {
    narrow = _mm_crc32_u8(narrow, std::to_integer<unsigned char>(*data));
  }
  return narrow;
}
#endif

}  // namespace

std::uint32_t crc32c_portable(std::span<const std::byte> data) noexcept {
  return ~extend_portable(~0U, data.data(), data.size());
}

std::uint32_t crc32c(std::span<const std::byte> data) noexcept {
#ifdef EMBERMESH_CRC_SSE42
  if (__builtin_cpu_supports("sse4.2")) return ~extend_sse42(~0U, data.data(), data.size());
#endif
  return crc32c_portable(data);
}

}  // namespace embermesh

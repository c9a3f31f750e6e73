// CRC-32C (Castagnoli): the checksum of every block this project writes.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace embermesh {

// CRC-32C of `data`, as in RFC 3720: crc32c("123456789") = 0xE3069283.
[[nodiscard]] std::uint32_t crc32c(std::span<const std::byte> data) noexcept;

// The same without special CPU instructions.
[[nodiscard]] std::uint32_t crc32c_portable(std::span<const std::byte> data) noexcept;

// The form in which a block carries its own checksum. Data followed by its plain CRC has one and
// the same CRC whatever the data, so a checksum over such blocks could not tell one from another;
// the addition, which is not linear in a CRC's arithmetic, breaks that.
[[nodiscard]] constexpr std::uint32_t masked_crc(std::uint32_t crc) noexcept {
  return std::rotr(crc, 15) + 0xA282EAD8U;
}

}  // namespace embermesh

// CRC-32C (Castagnoli): the checksum of every block this project writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace embermesh {

// CRC-32C of `data`, as in RFC 3720: crc32c("123456789") = 0xE3069283.
[[nodiscard]] std::uint32_t crc32c(std::span<const std::byte> data) noexcept;

// The same without special CPU instructions.
[[nodiscard]] std::uint32_t crc32c_portable(std::span<const std::byte> data) noexcept;

}  // namespace embermesh

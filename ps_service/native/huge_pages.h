// Memory straight from the operating system, on huge pages where it offers them.
#pragma once

#include <cstddef>

namespace embermesh {

// `bytes` of zeros aligned to `alignment`; both are multiples of the page size and powers of two
// respectively. Throws std::bad_alloc.
[[nodiscard]] std::byte* map_pages(std::size_t bytes, std::size_t alignment);

void unmap_pages(std::byte* memory, std::size_t bytes) noexcept;

// Frees what lies behind the whole pages of [memory, memory + bytes); the addresses stay valid and
// read as zeros.
void discard_pages(std::byte* memory, std::size_t bytes) noexcept;

}  // namespace embermesh

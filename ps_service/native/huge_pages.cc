#include "huge_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <new>

namespace embermesh {

std::byte* map_pages(std::size_t bytes, std::size_t alignment) {
  // Too much, to cut an aligned piece out of it.
  const std::size_t asked = bytes + alignment;
  void* const mapped =
      ::mmap(nullptr, asked, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  auto* const start = static_cast<std::byte*>(mapped);
  const std::size_t before = -reinterpret_cast<std::uintptr_t>(start) & (alignment - 1);
  if (before > 0) ::munmap(start, before);
  if (alignment > before) ::munmap(start + before + bytes, alignment - before);
#ifdef MADV_HUGEPAGE
  ::madvise(start + before, bytes, MADV_HUGEPAGE);  // a hint: random reads then miss the TLB less
#endif
  return start + before;
}

void unmap_pages(std::byte* memory, std::size_t bytes) noexcept { ::munmap(memory, bytes); }

void discard_pages(std::byte* memory, std::size_t bytes) noexcept {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const auto start = reinterpret_cast<std::uintptr_t>(memory);
  const std::uintptr_t first = (start + page - 1) & ~(page - 1);
  const std::uintptr_t last = (start + bytes) & ~(page - 1);
  if (first < last) ::madvise(memory + (first - start), last - first, MADV_DONTNEED);
}

}  // namespace embermesh

// Function multiversioning: one binary that uses AVX-512 or AVX2 where the CPU has them.
//
// The build compiles with -ffp-contract=off, so every version of a kernel gives the same bits: a
// checkpoint or a `sync` run must not depend on which machine a shard was scheduled on.
#pragma once

// Clones need ifunc (GCC + glibc on x86-64). Sanitizers run before ifuncs are resolved, so their
// builds define EMBERMESH_NO_MULTIVERSION.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__GLIBC__) && \
    !defined(EMBERMESH_NO_MULTIVERSION)
#define EMBERMESH_SIMD __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define EMBERMESH_SIMD
#endif

#include <cstddef>

namespace embermesh {

inline constexpr std::size_t kCacheLine = 64;

// Asks for the cache line at `address`. The empty statement keeps GCC from taking a function that
// only prefetches for one without effect, whose calls it then leaves out.
inline void prefetch_line(const void* address) noexcept {
  __builtin_prefetch(address);
  asm volatile("" : : "r"(address));
}

// Asks for every cache line of [address, address + bytes), capped so that a huge row cannot flush
// the cache of the rows before it; the hardware prefetcher follows the rest.
inline void prefetch_row(const void* address, std::size_t bytes) noexcept {
  constexpr std::size_t kMaxBytes = 8 * kCacheLine;
  const auto* line = static_cast<const char*>(address);
  const std::size_t end = bytes < kMaxBytes ? bytes : kMaxBytes;
  for (std::size_t at = 0; at < end; at += kCacheLine) prefetch_line(line + at);
}

}  // namespace embermesh

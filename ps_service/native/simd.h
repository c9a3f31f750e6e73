// Function multiversioning: one binary that uses AVX-512 or AVX2 where the CPU has them.
//
// The build compiles with -ffp-contract=off, so every version of a kernel gives the same bits: a
// checkpoint or a `sync` run must not depend on which machine a shard was scheduled on. Only what a
// trainer has TensorFlow do otherwise, on its own machine, is without that: projection_kernels.h.
#pragma once

// Clones need ifunc (GCC + glibc on x86-64). Sanitizers run before ifuncs are resolved, so their
// builds define EMBERMESH_NO_MULTIVERSION.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__GLIBC__) && \
    !defined(EMBERMESH_NO_MULTIVERSION)
#define EMBERMESH_SIMD __attribute__((target_clones("avx512f", "avx2", "default")))
// For products of 64-bit integers: only x86-64-v4 (AVX-512 DQ) has them as vectors.
#define EMBERMESH_SIMD_64 __attribute__((target_clones("arch=x86-64-v4", "default")))
// For loops over 16-bit numbers: AVX-512 F alone makes no whole vectors of them, x86-64-v4 (BW)
// does.
#define EMBERMESH_SIMD_16 __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
// For a function with a version of its own, because the compiler does not write past the cache by
// itself.
#define EMBERMESH_AVX512 __attribute__((target("avx512f")))
#define EMBERMESH_ANY_CPU __attribute__((target("default")))
// The same with fused multiply-adds: 16 registers of 8 floats, 32 of 16.
#define EMBERMESH_X86_64_V3 __attribute__((target("arch=x86-64-v3")))
#define EMBERMESH_X86_64_V4 __attribute__((target("arch=x86-64-v4")))
#else
#define EMBERMESH_SIMD
#define EMBERMESH_SIMD_64
#define EMBERMESH_SIMD_16
#define EMBERMESH_ANY_CPU
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#ifdef __SSE2__
#include <immintrin.h>
#endif

namespace embermesh {

inline constexpr std::size_t kCacheLine = 64;

[[nodiscard]] inline bool is_line_aligned(const void* address) noexcept {
  return reinterpret_cast<std::uintptr_t>(address) % kCacheLine == 0;
}

// Writes whole lines past the cache, where the CPU can: a large result is not read back soon, and
// its lines need not be fetched only to be overwritten. `to` is aligned to a line, `from` to 16
// bytes. finish_streaming() before another thread may look.
inline void stream_lines(float* to, const float* from, std::size_t floats) noexcept {
#ifdef __SSE2__
  for (std::size_t i = 0; i < floats; i += 4) _mm_stream_ps(to + i, _mm_load_ps(from + i));
#else
  std::memcpy(to, from, floats * sizeof(float));
#endif
}

inline void finish_streaming() noexcept {
#ifdef __SSE2__
  _mm_sfence();
#endif
}

// Asks for the cache lines of [address, address + bytes) as their only owner, because they will be
// overwritten; capped like prefetch_row.
inline void prefetch_to_write(void* address, std::size_t bytes) noexcept {
  constexpr std::size_t kMaxBytes = 8 * kCacheLine;
  auto* const start = static_cast<char*>(address);
  for (std::size_t i = 0; i < bytes && i < kMaxBytes; i += kCacheLine) {
    __builtin_prefetch(start + i, 1, 2);
  }
  asm volatile("" : : "r"(address));
}

// Where a line that is asked for is to be.
enum class Cache {
  kFirst,   // soon in use, and perhaps in the second level already
  kSecond,  // far away: the second level waits for 48 lines at a time, the first for 16 (Intel)
};

// Asks for the cache line at `address`. The empty statement keeps GCC from taking a function that
// only prefetches for one without effect, whose calls it then leaves out.
template <Cache kInto = Cache::kSecond>
inline void prefetch_line(const void* address) noexcept {
  __builtin_prefetch(address, 0, kInto == Cache::kFirst ? 3 : 2);
  asm volatile("" : : "r"(address));
}

// Asks for every cache line of [address, address + bytes), capped so that a huge row cannot flush
// the cache of the rows before it; the hardware prefetcher follows the rest.
template <Cache kInto = Cache::kSecond>
inline void prefetch_row(const void* address, std::size_t bytes) noexcept {
  constexpr std::size_t kMaxBytes = 8 * kCacheLine;
  const auto* const start = static_cast<const char*>(address);
  const auto* const end = start + (bytes < kMaxBytes ? bytes : kMaxBytes);
  const auto* line = start - reinterpret_cast<std::uintptr_t>(start) % kCacheLine;
  do {
    prefetch_line<kInto>(line);
    line += kCacheLine;
  } while (line < end);
}

// Asks for a list of which a few dozen elements will be looked up, in the next microseconds; capped
// for the same reason.
template <class T>
void prefetch_list(const std::vector<T>& list) noexcept {
  constexpr std::size_t kPerLine = kCacheLine / sizeof(T);
  constexpr std::size_t kMost = 16 * kPerLine;
  const std::size_t end = list.size() < kMost ? list.size() : kMost;
  for (std::size_t i = 0; i < end; i += kPerLine) {
    prefetch_line<Cache::kFirst>(static_cast<const void*>(list.data() + i));
  }
}

}  // namespace embermesh

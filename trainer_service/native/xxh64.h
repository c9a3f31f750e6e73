// XXH64, the 64-bit hash of the xxHash family (specification: doc/xxhash_spec.md of xxHash, version
// 0.1.1).
//
// Keys of embedding rows derive from it, so its output is part of the checkpoint's meaning: it must
// never change, and it must not depend on the machine (bytes are read as little-endian words).
#pragma once

#include <cstddef>
#include <cstdint>

namespace embermesh {

// Hash of `size` bytes at `data`; `data` may be null when size is 0. Thread-safe, no allocation.
uint64_t Xxh64(const uint8_t* data, size_t size, uint64_t seed) noexcept;

}  // namespace embermesh

// Copies and sums of many rows of a few floats each, at the pace of the caches.
#pragma once

#include <algorithm>
#include <cstddef>

#include "simd.h"

namespace embermesh {

// A width that is known when this is compiled, of as many floats as one vector or two.
template <std::size_t kFloats>
struct Fixed {
  using Lanes
      [[gnu::vector_size(kFloats * sizeof(float)), gnu::aligned(alignof(float)), gnu::may_alias]] =
          float;

  [[gnu::always_inline]] static void copy(const float* from, float* to) noexcept {
    *reinterpret_cast<Lanes*>(to) = *reinterpret_cast<const Lanes*>(from);
  }
  [[gnu::always_inline]] static void add(const float* from, float* to) noexcept {
    *reinterpret_cast<Lanes*>(to) += *reinterpret_cast<const Lanes*>(from);
  }
};

struct AnyWidth {
  std::size_t floats;

  [[gnu::always_inline]] void copy(const float* __restrict from,
                                   float* __restrict to) const noexcept {
    for (std::size_t i = 0; i < floats; ++i) to[i] = from[i];
  }
  [[gnu::always_inline]] void add(const float* __restrict from,
                                  float* __restrict to) const noexcept {
    for (std::size_t i = 0; i < floats; ++i) to[i] += from[i];
  }
};

// Calls body with the width: a copy or a sum of few floats costs less than a loop around it, or
// than the call of memcpy that a compiler makes of the loop.
template <class Body>
[[gnu::always_inline]] inline void with_width(std::size_t floats, const Body& body) {
  switch (floats) {
    case 4:
      return body(Fixed<4>());
    case 8:
      return body(Fixed<8>());
    case 16:
      return body(Fixed<16>());
    case 32:
      return body(Fixed<32>());
    default:
      return body(AnyWidth{floats});
  }
}

// Rows are in the second-level cache at best. They are asked for a group at a time while the group
// before is worked at: many requests in a row are on their way at once, each behind others' work is
// not.
inline constexpr std::size_t kRowGroup = 16;

// Calls ask(i), and some time after it visit(i), for i = 0, ..., size - 1 in turn.
template <class Ask, class Visit>
[[gnu::always_inline]] inline void for_each_asked(std::size_t size, const Ask& ask,
                                                  const Visit& visit) {
  for (std::size_t i = 0; i < std::min(kRowGroup, size); ++i) ask(i);
  for (std::size_t first = 0; first < size; first += kRowGroup) {
    const std::size_t end = std::min(size, first + kRowGroup);
    for (std::size_t i = end; i < std::min(size, end + kRowGroup); ++i) ask(i);
    for (std::size_t i = first; i < end; ++i) visit(i);
  }
}

}  // namespace embermesh

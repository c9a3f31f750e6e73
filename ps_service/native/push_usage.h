// How many samples each key of a push stands for.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "table_config.h"

namespace embermesh {

// Immutable.
class PushUsage {
 public:
  // One sample and no click for every key.
  PushUsage() = default;

  // `shows` and `clicks`: one per key of the request that `counts` describes; they must outlive it.
  PushUsage(const Schema& schema, std::span<const std::uint32_t> counts,
            std::span<const float> shows, std::span<const float> clicks)
      : shows_(shows), clicks_(clicks) {
    segments_.reserve(counts.size());
    Segment at{0, 0, 1};
    for (std::size_t i = 0; i < counts.size(); ++i) {
      at.dim = schema.dim(i % schema.size());
      segments_.push_back(at);
      at.first_float += counts[i] * at.dim;
      at.first_key += counts[i];
    }
  }

  struct Counts {
    double shows;
    double clicks;
  };
  // Of the key whose gradient begins at float `offset`.
  [[nodiscard]] Counts of(std::uint64_t offset) const noexcept {
    if (segments_.empty()) return {1.0, 0.0};
    // The last segment that begins at or before it; empty ones begin where the next one does.
    const auto next = std::ranges::upper_bound(segments_, offset, {}, &Segment::first_float);
    const Segment& segment = *std::prev(next);
    const std::size_t key = segment.first_key + (offset - segment.first_float) / segment.dim;
    return {shows_[key], clicks_[key]};
  }

 private:
  struct Segment {
    std::uint64_t first_float;
    std::size_t first_key;
    std::size_t dim;
  };

  std::span<const float> shows_;
  std::span<const float> clicks_;
  std::vector<Segment> segments_;
};

}  // namespace embermesh

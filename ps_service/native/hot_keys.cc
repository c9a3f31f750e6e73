#include "hot_keys.h"

#include <algorithm>

#include "hash.h"

namespace embermesh {

void SpaceSaving::add(std::uint64_t key, std::uint64_t occurrences) noexcept {
  total_ += occurrences;
  const auto known = std::find(keys_.begin(), keys_.begin() + used_, key);
  auto at = static_cast<std::size_t>(known - keys_.begin());
  if (at == used_) {
    if (used_ < kCounters) {
      ++used_;
      errors_[at] = 0;
      counts_[at] = 0;
    } else {  // the rarest key leaves, and its count becomes the newcomer's error
      at = static_cast<std::size_t>(std::ranges::min_element(counts_) - counts_.begin());
      errors_[at] = counts_[at];
    }
    keys_[at] = key;
  }
  counts_[at] += occurrences;
  if (total_ < kMemory) return;
  total_ /= 2;
  for (std::uint64_t& count : counts_) count /= 2;
  for (std::uint64_t& error : errors_) error /= 2;
}

std::vector<HotKey> SpaceSaving::top(std::size_t n) const {
  std::vector<HotKey> all;
  all.reserve(used_);
  for (std::size_t i = 0; i < used_; ++i) {
    const double share = static_cast<double>(counts_[i]) / static_cast<double>(total_);
    all.push_back({keys_[i], counts_[i], errors_[i], share});
  }
  std::ranges::sort(all, [](const HotKey& a, const HotKey& b) {
    return a.count != b.count ? a.count > b.count : a.key < b.key;
  });
  all.resize(std::min(n, all.size()));
  return all;
}

void HotKeySampler::sample(std::span<const std::uint32_t> counts,
                           std::span<const std::uint64_t> keys) noexcept {
  const std::size_t stride = std::max(kStride, keys.size() / kMaxSamples + 1);
  std::size_t at = mix64(requests_.fetch_add(1, std::memory_order_relaxed)) % stride;
  if (at >= keys.size()) return;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return;
  std::size_t end = 0;
  for (std::size_t segment = 0; segment < counts.size() && at < keys.size(); ++segment) {
    for (end += counts[segment]; at < end; at += stride) {
      tables_[segment % tables_.size()].add(keys[at], stride);
    }
  }
}

std::vector<HotKey> HotKeySampler::top(std::size_t table, std::size_t n) const {
  const std::scoped_lock lock(mutex_);
  return tables_[table].top(n);
}

void HotKeySampler::clear() {
  const std::scoped_lock lock(mutex_);
  std::ranges::fill(tables_, SpaceSaving{});
}

}  // namespace embermesh

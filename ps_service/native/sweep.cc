#include "sweep.h"

#include <algorithm>

#include "simd.h"

namespace embermesh {

Sweep::Sweep(const Schema& schema, std::uint32_t partitions, std::uint32_t now)
    : schema_(&schema), partitions_(partitions), now_(now) {
  while (!done() && schema.table(table_).rows.eviction->is_off()) ++table_;
}

std::span<const Sweep::Victim> Sweep::slice(RowStore& store) {
  victims_.clear();
  const EvictionPolicy& policy = *schema_->table(table_).rows.eviction;
  if (!is_begun_) begin_table(store, policy);
  if (!is_scanned_) {
    scan(store, policy);
  } else {
    trim(store, policy);
  }
  return victims_;
}

void Sweep::begin_table(const RowStore& store, const EvictionPolicy& policy) {
  is_begun_ = true;
  is_scanned_ = false;
  ranks_rows_ = store.rows(table_) > policy.most_rows(partitions_);
  buckets_ = bucket_ = store.index(table_).buckets();
  if (ranks_rows_) candidates_.reserve(store.rows(table_));
  excess_ = 0;
  trimmed_ = 0;
}

// From the last bucket to the first, because erasing moves entries to earlier buckets: those are
// seen again instead of never.
void Sweep::scan(RowStore& store, const EvictionPolicy& policy) {
  const FlatIndex& index = store.index(table_);
  const std::size_t rows = policy.has_norm() ? kRows / 8 : kRows;
  if (index.buckets() != buckets_) {  // grown or shrunk: every entry's place changed by this ratio
    const std::size_t scaled = bucket_ * index.buckets() / std::max<std::size_t>(buckets_, 1);
    buckets_ = index.buckets();
    bucket_ = std::min(buckets_, scaled + 2);
  }
  const std::size_t buckets = std::min(rows / 4, bucket_);  // four slots: rows with metadata
  bucket_ -= buckets;
  const std::size_t dim = schema_->dim(table_);
  const std::uint64_t fewest = policy.fewest_rows(partitions_);
  if (policy.has_norm()) {
    index.for_each(bucket_, buckets, [&](Slot slot) {
      prefetch_row(store.arena(table_).row(slot.row()), schema_->weight_bytes(table_));
    });
  }
  index.for_each(bucket_, buckets, [&](Slot slot) {
    if (now_ != 0 && !policy.meta().was_seen(slot.meta())) {
      slot.meta() = policy.meta().touch(slot.meta(), now_, 0.0, 0);
    }
    const float* weights = nullptr;
    if (policy.has_norm()) {
      widened_.resize(dim);
      widen_weights(schema_->table(table_).weights, store.arena(table_).row(slot.row()), dim,
                    widened_.data());
      weights = widened_.data();
    }
    const auto reason = policy.verdict(slot.meta(), now_, weights, dim);
    if (reason && store.rows(table_) - victims_.size() > fewest) {
      victims_.push_back({slot.hash(), table_, *reason});
    } else if (ranks_rows_) {
      candidates_.push_back({policy.rank(slot.meta(), now_), slot.hash()});
    }
  });
  if (bucket_ > 0) return;
  is_scanned_ = true;
  const std::uint64_t left = store.rows(table_) - victims_.size();
  const std::uint64_t most = policy.most_rows(partitions_);
  excess_ = left > most ? std::min<std::uint64_t>(left - most, candidates_.size()) : 0;
}

void Sweep::think() {
  if (!done() && is_scanned_ && trimmed_ == 0) {
    // Lowest rank first; of equal ones the hash decides, so that equal contents lose equal rows.
    std::ranges::nth_element(candidates_,
                             candidates_.begin() + static_cast<std::ptrdiff_t>(excess_));
    candidates_.resize(excess_);
  }
  if (is_scanned_ && trimmed_ == excess_) next_table();
}

void Sweep::trim(RowStore& store, const EvictionPolicy& policy) {
  const std::size_t end = std::min<std::size_t>(trimmed_ + kRows / 4, excess_);
  for (; trimmed_ < end; ++trimmed_) {
    const Candidate& candidate = candidates_[trimmed_];
    const Slot slot = store.index(table_).find(candidate.hash);
    if (slot && policy.rank(slot.meta(), now_) == candidate.rank) {
      victims_.push_back({candidate.hash, table_, policy.over_limit()});
    }
  }
}

void Sweep::next_table() noexcept {
  is_begun_ = false;
  is_scanned_ = false;
  candidates_ = {};
  do {
    ++table_;
  } while (!done() && schema_->table(table_).rows.eviction->is_off());
}

}  // namespace embermesh

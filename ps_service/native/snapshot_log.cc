#include "snapshot_log.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

namespace embermesh {
namespace {

// A partition that loses more keys than this and than it has rows is cheaper to write whole.
constexpr std::size_t kMinRemoved = 1024;

}  // namespace

void RowMarks::merge(const RowMarks& older) noexcept {
  // Rows that are newer than `older` have its mark, whether they are older than this set or not.
  for (RowNumber row = older.bound_; row < bound_; ++row) put(row, true);
  const std::size_t shared = std::min(words_.size(), older.words_.size());
  for (std::size_t i = 0; i < shared; ++i) words_[i] |= older.words_[i];
}

void PreImages::add(const TableKey& key, bool changed, const void* row, std::size_t bytes) {
  if (images_.size() == images_.capacity())
    images_.reserve(std::max<std::size_t>(64, 2 * images_.size()));
  if (bytes > room_) {
    const std::size_t size = std::max(kChunkBytes, bytes);
    chunks_.push_back(std::make_unique_for_overwrite<std::byte[]>(size));
    next_ = chunks_.back().get();
    room_ = size;
    held_ += size;
  }
  std::memcpy(next_, row, bytes);
  images_.push_back(Image{key, changed, next_});
  next_ += bytes;
  room_ -= bytes;
}

std::size_t PreImages::bytes() const noexcept { return held_ + images_.capacity() * sizeof(Image); }

void PreImages::sort() { std::ranges::sort(images_, {}, &Image::key); }

const PreImages::Image& PreImages::of(const TableKey& key) const noexcept {
  return *std::ranges::lower_bound(images_, key, {}, &Image::key);
}

void SnapshotLog::turn(std::uint64_t now, std::span<const std::uint64_t> rows,
                       std::span<const RowNumber> bounds) {
  std::vector<RowMarks> fresh;
  fresh.reserve(bounds.size());
  for (const RowNumber bound : bounds) fresh.emplace_back(bound);
  std::ranges::copy(rows, rows_.begin());
  whole_before_ = lost_;
  marks_before_ = std::exchange(marks_, std::move(fresh));
  removed_before_ = std::exchange(removed_, {});
  lost_ = spoiled_ = false;
  preserving_ = true;
  time_ = now;
}

void SnapshotLog::skip_to(std::uint64_t now) noexcept {
  time_ = now;
  replaced();
}

void SnapshotLog::touch(const TableKey& key, const RowPlace& place, const void* content,
                        std::size_t bytes) {
  if (preserving_) images_.add(key, changed_before(place), content, bytes);
  marks_[place.arena].put(place.row, true);
}

void SnapshotLog::remove(const TableKey& key, const RowPlace& place, const void* content,
                         std::size_t bytes) noexcept {
  try {
    if (!is_touched(place)) touch(key, place, content, bytes);
  } catch (const std::bad_alloc&) {  // who removes rows can't be stopped
    spoiled_ = true;
    marks_[place.arena].put(place.row, true);
  }
  if (lost_) return;
  std::uint64_t rows = 0;
  for (const std::uint64_t n : rows_) rows += n;
  if (removed_.size() >= std::max<std::uint64_t>(kMinRemoved, rows)) return forget_removed();
  try {
    removed_.push_back(key);
  } catch (const std::bad_alloc&) {
    forget_removed();
  }
}

void SnapshotLog::moved(const RowPlace& from, RowNumber to) noexcept {
  for (auto* marks : {&marks_[from.arena], &marks_before_[from.arena]}) {
    marks->put(to, marks->test(from.row));
  }
}

void SnapshotLog::replaced() noexcept {
  for (RowMarks& marks : marks_) marks.fill();
  forget_removed();
}

PreImages SnapshotLog::stop_preserving() noexcept {
  preserving_ = false;
  return std::exchange(images_, PreImages());
}

void SnapshotLog::settle(bool committed) noexcept {
  if (!committed) take_back();
  for (RowMarks& marks : marks_before_) marks.fill();
  removed_before_ = {};
  static_cast<void>(stop_preserving());
}

void SnapshotLog::take_back() noexcept {
  if (whole_before_ || lost_) return forget_removed();
  try {
    removed_.insert(removed_.end(), removed_before_.begin(), removed_before_.end());
  } catch (const std::bad_alloc&) {
    return forget_removed();
  }
  for (std::size_t a = 0; a < marks_.size(); ++a) marks_[a].merge(marks_before_[a]);
}

std::size_t SnapshotLog::bytes() const noexcept {
  std::size_t total = images_.bytes();
  for (const RowMarks& marks : marks_) total += marks.bytes();
  for (const RowMarks& marks : marks_before_) total += marks.bytes();
  return total + (removed_.capacity() + removed_before_.capacity()) * sizeof(TableKey);
}

void SnapshotLog::forget_removed() noexcept {
  lost_ = true;
  removed_ = {};
}

}  // namespace embermesh

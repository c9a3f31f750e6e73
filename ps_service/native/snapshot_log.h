// What one partition remembers so that a snapshot can be written while traffic goes on, and so that
// the next one can hold nothing but the changes.
//
// Time is divided by the beginnings of snapshots. The log marks every row that is touched (written,
// added, removed) after the latest beginning: one bit per row. Until the snapshot has taken its
// copy, the first touch of a row also saves the row as it was. So the content at the beginning is,
// at any later moment, the live rows without a mark plus the saved images. The marks of the time
// before, kept until the snapshot is over, tell which rows a delta needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "row_names.h"

namespace embermesh {

// A set of row numbers as a bitmap. Rows from its bound on, which are newer than the set, are
// always in it.
class RowMarks {
 public:
  RowMarks() = default;
  explicit RowMarks(RowNumber bound) : bound_(bound), words_((bound + kBits - 1) / kBits) {}

  [[nodiscard]] bool test(RowNumber row) const noexcept {
    return row >= bound_ || (words_[row / kBits] >> (row % kBits) & 1U) != 0;
  }
  void put(RowNumber row, bool in) noexcept {
    if (row >= bound_) return;
    const std::uint64_t bit = std::uint64_t{1} << (row % kBits);
    std::uint64_t& word = words_[row / kBits];
    word = in ? word | bit : word & ~bit;
  }
  // Makes it the set of all rows.
  void fill() noexcept { *this = RowMarks(); }
  // Adds all of an older set.
  void merge(const RowMarks& older) noexcept;

  [[nodiscard]] std::size_t bytes() const noexcept { return words_.capacity() * sizeof(words_[0]); }

 private:
  static constexpr std::size_t kBits = 64;

  RowNumber bound_ = 0;
  std::vector<std::uint64_t> words_;
};

// Where a row lies within its partition.
struct RowPlace {
  std::uint32_t arena;
  RowNumber row;  // kNoRow: nowhere
};

// A key and its table.
struct TableKey {
  std::uint32_t table;
  std::uint64_t key;

  friend auto operator<=>(const TableKey&, const TableKey&) = default;
};

// Rows as they were before they were touched.
class PreImages {
 public:
  struct Image {
    TableKey key;
    bool changed;            // also touched in the time before: a delta needs it
    const std::byte* bytes;  // of the whole row
  };

  // Throws std::bad_alloc, and then nothing has changed.
  void add(const TableKey& key, bool changed, const void* row, std::size_t bytes);

  [[nodiscard]] std::span<const Image> all() const noexcept { return images_; }
  [[nodiscard]] std::size_t bytes() const noexcept;

  void sort();
  // Image of `key`, after sort(); the key must have one.
  [[nodiscard]] const Image& of(const TableKey& key) const noexcept;

 private:
  static constexpr std::size_t kChunkBytes = std::size_t{32} << 10;

  std::vector<Image> images_;
  std::vector<std::unique_ptr<std::byte[]>> chunks_;
  std::size_t room_ = 0;  // bytes left in the last chunk
  std::byte* next_ = nullptr;
  std::size_t held_ = 0;
};

// Not thread-safe: its partition's lock guards it. Snapshots are numbered from 1; before the first
// one nothing is remembered and nothing costs memory.
class SnapshotLog {
 public:
  SnapshotLog(std::size_t tables, std::size_t arenas)
      : marks_(arenas), marks_before_(arenas), rows_(tables, 0) {}

  // Whether a snapshot has begun that is not noticed yet; then turn() comes before any change.
  [[nodiscard]] bool is_behind(std::uint64_t now) const noexcept { return now != time_; }
  // Notices it. `rows`: the present rows per table; `bounds`: above the number of every row, per
  // arena. Throws std::bad_alloc, and then nothing has changed.
  void turn(std::uint64_t now, std::span<const std::uint64_t> rows,
            std::span<const RowNumber> bounds);
  // Notices it where nothing is to be preserved or to be known of changes.
  void skip_to(std::uint64_t now) noexcept;

  // Whether anybody wants to hear of touches: false before the first snapshot.
  [[nodiscard]] bool is_watching() const noexcept { return time_ != 0; }

  // Whether the row was touched since the latest snapshot began; touch() is then superfluous.
  [[nodiscard]] bool is_touched(const RowPlace& place) const noexcept {
    return marks_[place.arena].test(place.row);
  }
  // Before an untouched row changes; `bytes` at `content` are the whole row. Throws std::bad_alloc,
  // and then the row must stay as it is.
  void touch(const TableKey& key, const RowPlace& place, const void* content, std::size_t bytes);
  // Before the row is removed.
  void remove(const TableKey& key, const RowPlace& place, const void* content,
              std::size_t bytes) noexcept;
  // After a row was added.
  void added(const RowPlace& place) noexcept { marks_[place.arena].put(place.row, true); }
  // After the row got another number; never while preserving().
  void moved(const RowPlace& from, RowNumber to) noexcept;
  // After all content was replaced: every row that is there now counts as touched. Rows that a
  // snapshot still needs must have been told to touch().
  void replaced() noexcept;

  // Of the latest snapshot: whether its copy is not taken yet, so that numbers of rows must stay;
  // whether that copy can't be made good for want of memory; rows per table when it began; whether
  // an untouched row changed in the time before; whether not all such changes are known, so that a
  // delta must hold everything; keys removed on the way to it; rows no longer there as they were.
  [[nodiscard]] bool preserving() const noexcept { return preserving_; }
  [[nodiscard]] bool is_spoiled() const noexcept { return spoiled_; }
  [[nodiscard]] std::span<const std::uint64_t> rows_at_begin() const noexcept { return rows_; }
  [[nodiscard]] bool changed_before(const RowPlace& place) const noexcept {
    return whole_before_ || marks_before_[place.arena].test(place.row);
  }
  [[nodiscard]] bool whole() const noexcept { return whole_before_; }
  [[nodiscard]] const std::vector<TableKey>& removed() const noexcept { return removed_before_; }
  [[nodiscard]] const PreImages& images() const noexcept { return images_; }

  // The copy is taken, or nobody wants it any more: hands the images out.
  PreImages stop_preserving() noexcept;
  // The snapshot is over. If it was given up, its changes count for the next one.
  void settle(bool committed) noexcept;

  [[nodiscard]] std::size_t bytes() const noexcept;

 private:
  // Adds the changes before the latest beginning to those after it.
  void take_back() noexcept;
  // The next delta will hold the whole partition.
  void forget_removed() noexcept;

  std::uint64_t time_ = 0;  // number of the latest snapshot noticed
  bool preserving_ = false;
  bool spoiled_ = false;
  bool lost_ = true;               // not all changes since the latest beginning are known
  std::vector<RowMarks> marks_;    // per arena: touched since the latest beginning
  std::vector<TableKey> removed_;  // since then

  bool whole_before_ = true;
  std::vector<RowMarks> marks_before_;  // touched between the last two beginnings
  std::vector<TableKey> removed_before_;
  std::vector<std::uint64_t> rows_;
  PreImages images_;
};

}  // namespace embermesh

// What the memory bus allows: the cache lines that a pull or push must read, and nothing else.
//
// Per key one line of an index as large as ours, then the lines of the row that it names, with the
// stages and windows of request_pipeline.h. No hashing, no comparison, no lock, no output. The
// reads are dependent, as ours: the row's number comes out of the index line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace embermesh::bench {

class Limit {
 public:
  // `row_lines` cache lines to a row.
  Limit(std::size_t rows, std::size_t row_lines);
  Limit(const Limit&) = delete;
  Limit& operator=(const Limit&) = delete;
  ~Limit();

  // Where key `number` (0 to rows - 1) has its index entry; equal numbers have equal places.
  [[nodiscard]] std::uint32_t place_of(std::uint64_t number) const noexcept;

  // Reads the index entries at `places` and the first `lines` lines of their rows. The sum keeps
  // the compiler from leaving the reads out.
  [[nodiscard]] std::uint64_t read(std::span<const std::uint32_t> places,
                                   std::size_t lines) const noexcept;

 private:
  struct Slot {
    std::uint64_t unused;
    std::uint32_t row;
    std::uint32_t unused_too;
  };

  std::size_t slots_;
  std::size_t row_words_;
  std::size_t row_bytes_;
  std::size_t rows_bytes_;
  Slot* index_;
  std::uint64_t* rows_;
};

}  // namespace embermesh::bench

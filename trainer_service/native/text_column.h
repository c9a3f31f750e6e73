// A column of byte strings as Apache Arrow lays it out, and what the transforms compute from it.
//
// Text i is data[offsets[i], offsets[i + 1]). Offsets are 32-bit (string) or 64-bit (large_string).
// Every function takes a valid column (bindings.cc checks it once), is thread-safe and holds no
// state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace embermesh {

template <typename Offset>
class TextColumn {
 public:
  TextColumn(const Offset* offsets, size_t size, const char* data) noexcept
      : offsets_(offsets), size_(size), data_(data) {}

  size_t size() const noexcept { return size_; }
  std::string_view operator[](size_t i) const noexcept {
    return {data_ + offsets_[i], static_cast<size_t>(offsets_[i + 1] - offsets_[i])};
  }

 private:
  const Offset* offsets_;  // size_ + 1 of them, never falling
  size_t size_;
  const char* data_;
};

// What became of one text that should be a number. The values are part of the Python API.
enum class Parsed : uint8_t { kValue = 0, kMissing = 1, kMalformed = 2 };

// Texts in Arrow's layout, owned.
struct OwnedText {
  std::vector<int32_t> offsets{0};
  std::string data;
};

// The tokens of all rows; row i has tokens [row_offsets[i], row_offsets[i + 1]).
struct SplitText {
  std::vector<int32_t> row_offsets{0};
  OwnedText tokens;
};

// out[i] = XXH64 of text i.
template <typename Offset>
void HashTexts(const TextColumn<Offset>& texts, uint64_t seed, uint64_t* out) noexcept;

// Decimal or scientific notation with an optional sign; blanks around it are ignored. Empty texts
// and `nan` are missing (value NaN). A value beyond float32, infinity and anything else are
// malformed.
template <typename Offset>
void ParseFloats(const TextColumn<Offset>& texts, double* values, Parsed* parsed) noexcept;

// Decimal integers from -2^63 to 2^64 - 1, as their 64 bits (two's complement); else as
// ParseFloats.
template <typename Offset>
void ParseInts(const TextColumn<Offset>& texts, uint64_t* values, Parsed* parsed) noexcept;

// Cuts each text at `separator` (not empty); empty tokens are dropped. Returns false when the
// tokens take 2 GiB or more.
template <typename Offset>
bool SplitTexts(const TextColumn<Offset>& texts, std::string_view separator, SplitText* out);

// The shortest decimal that reads back as the same value, without a point for whole numbers: plain
// from 1e-4 to below 1e16, else scientific (Python's repr without a trailing ".0"). NaN becomes an
// empty text, -0 becomes 0, infinities inf and -inf. Value is float or double.
template <typename Value>
OwnedText FloatTexts(const Value* values, size_t size);

// out[i] = XXH64, seed 0, of the 8-byte little-endian columns[0][i], columns[1][i], ...
void CombineHashes(const std::vector<const uint64_t*>& columns, size_t size, uint64_t* out);

}  // namespace embermesh

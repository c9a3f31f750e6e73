// Flat JSON objects to text columns: the common case of JSON messages, without an object per value.
//
// A row goes in two steps, because messages come one by one and batches are columns: `Pack` turns a
// message into the texts of the wanted columns, `Unpack` lays many of them out as Apache Arrow
// does. What is not common is left to the caller, who has a complete parser: lists, nested objects,
// numbers beyond float64, NaN, half of a surrogate pair, and whatever is no JSON.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text_column.h"

namespace embermesh {

// One column: texts, and a bit for each that is not null (Arrow's validity bitmap).
struct NullableText {
  OwnedText texts;
  std::vector<uint8_t> validity;
  bool has_nulls = false;
};

// Immutable, so any number of threads may use one.
class JsonRowReader {
 public:
  // `columns` are distinct names.
  explicit JsonRowReader(const std::vector<std::string>& columns);

  // Appends the packed row to `out`: for each column a length (kNull for null) and the text. A
  // number's text is its digits, or for a fraction or exponent that of FloatTexts; of a column
  // given twice the last value counts. Returns false, and leaves `out` undefined, for a message
  // that needs a complete parser.
  bool Pack(std::string_view message, std::string* out) const;

  // The columns of packed rows. Returns false when a column takes 2 GiB or more, or for bytes that
  // Pack did not make.
  bool Unpack(const std::vector<std::string_view>& rows, std::vector<NullableText>* out) const;

  size_t columns() const noexcept { return columns_; }

  static constexpr uint32_t kNull = ~uint32_t{0};

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const noexcept {
      return std::hash<std::string_view>()(text);
    }
  };

  size_t columns_;
  std::unordered_map<std::string, size_t, Hash, std::equal_to<>> places_;
};

// Whether the bytes are UTF-8: no overlong form, no surrogate, nothing beyond U+10FFFF.
bool IsUtf8(std::string_view bytes) noexcept;

}  // namespace embermesh

#include "text_column.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <limits>

#include "xxh64.h"

namespace embermesh {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::string_view Trim(std::string_view text) noexcept {
  constexpr std::string_view kBlanks = " \t\r\n\v\f";
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

bool IsNan(std::string_view text) noexcept {
  return text.size() == 3 && (text[0] | 0x20) == 'n' && (text[1] | 0x20) == 'a' &&
         (text[2] | 0x20) == 'n';
}

// std::from_chars refuses a leading plus; "+-1" must stay refused.
std::string_view WithoutPlus(std::string_view text) noexcept {
  const bool plus = text.size() > 1 && text[0] == '+' && text[1] != '-';
  return plus ? text.substr(1) : text;
}

// The whole text must be the number.
template <typename Value>
bool Read(std::string_view text, Value* value) noexcept {
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, *value);
  return at == end && error == std::errc();
}

Parsed ParseFloat(std::string_view text, double* value) noexcept {
  text = Trim(text);
  *value = kNan;
  if (text.empty() || IsNan(text)) return Parsed::kMissing;
  text = WithoutPlus(text);
  double number = 0;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, number);
  if (at != end || error == std::errc::invalid_argument) return Parsed::kMalformed;
  if (error == std::errc::result_out_of_range) {
    // from_chars doesn't tell too large from too small; the sign of the exponent does.
    if (text.find("e-") == std::string_view::npos && text.find("E-") == std::string_view::npos) {
      return Parsed::kMalformed;
    }
    number = 0;
  }
  if (!std::isfinite(number)) return Parsed::kMalformed;
  *value = number;
  return Parsed::kValue;
}

Parsed ParseInt(std::string_view text, uint64_t* value) noexcept {
  text = Trim(text);
  *value = 0;
  if (text.empty() || IsNan(text)) return Parsed::kMissing;
  text = WithoutPlus(text);
  if (text[0] != '-') return Read(text, value) ? Parsed::kValue : Parsed::kMalformed;
  int64_t negative = 0;
  if (!Read(text, &negative)) return Parsed::kMalformed;
  *value = std::bit_cast<uint64_t>(negative);
  return Parsed::kValue;
}

template <typename Value>
void AppendFloat(Value value, std::string* out) {
  if (std::isnan(value)) return;
  if (value == 0 || std::isinf(value)) {  // also -0
    out->append(value == 0 ? "0" : value > 0 ? "inf" : "-inf");
    return;
  }
  // The shortest digits first: their exponent, not the value, decides (1e-4f is a little below
  // 1e-4).
  char buffer[64];  // the longest text is a plain double: sign, 17 digits, point, 4 zeros
  char* const limit = buffer + sizeof(buffer);
  auto result = std::to_chars(buffer, limit, value, std::chars_format::scientific);
  const char* mark = std::find(buffer, result.ptr, 'e');
  int exponent = 0;
  std::from_chars(mark + (mark[1] == '+' ? 2 : 1), result.ptr, exponent);
  if (exponent >= -4 && exponent < 16) {
    result = std::to_chars(buffer, limit, value, std::chars_format::fixed);
  }
  out->append(buffer, result.ptr);
}

void Close(OwnedText* text) { text->offsets.push_back(static_cast<int32_t>(text->data.size())); }

}  // namespace

template <typename Offset>
void HashTexts(const TextColumn<Offset>& texts, uint64_t seed, uint64_t* out) noexcept {
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::string_view text = texts[i];
    out[i] = Xxh64(reinterpret_cast<const uint8_t*>(text.data()), text.size(), seed);
  }
}

template <typename Offset>
void ParseFloats(const TextColumn<Offset>& texts, double* values, Parsed* parsed) noexcept {
  for (size_t i = 0; i < texts.size(); ++i) parsed[i] = ParseFloat(texts[i], &values[i]);
}

template <typename Offset>
void ParseInts(const TextColumn<Offset>& texts, uint64_t* values, Parsed* parsed) noexcept {
  for (size_t i = 0; i < texts.size(); ++i) parsed[i] = ParseInt(texts[i], &values[i]);
}

template <typename Offset>
bool SplitTexts(const TextColumn<Offset>& texts, std::string_view separator, SplitText* out) {
  constexpr size_t kLimit = std::numeric_limits<int32_t>::max();
  for (size_t i = 0; i < texts.size(); ++i) {
    std::string_view rest = texts[i];
    while (!rest.empty()) {
      const size_t cut = rest.find(separator);
      const std::string_view token = rest.substr(0, cut);
      if (!token.empty()) {
        if (token.size() > kLimit - out->tokens.data.size()) return false;
        out->tokens.data.append(token);
        Close(&out->tokens);
      }
      if (cut == std::string_view::npos) break;
      rest.remove_prefix(cut + separator.size());
    }
    out->row_offsets.push_back(static_cast<int32_t>(out->tokens.offsets.size() - 1));
  }
  return true;
}

template <typename Value>
OwnedText FloatTexts(const Value* values, size_t size) {
  OwnedText texts;
  texts.offsets.reserve(size + 1);
  for (size_t i = 0; i < size; ++i) {
    AppendFloat(values[i], &texts.data);
    Close(&texts);
  }
  return texts;
}

void CombineHashes(const std::vector<const uint64_t*>& columns, size_t size, uint64_t* out) {
  std::vector<uint8_t> bytes(columns.size() * sizeof(uint64_t));
  for (size_t i = 0; i < size; ++i) {
    size_t at = 0;
    for (const uint64_t* column : columns) {
      for (int shift = 0; shift < 64; shift += 8) {
        bytes[at++] = static_cast<uint8_t>(column[i] >> shift);
      }
    }
    out[i] = Xxh64(bytes.data(), bytes.size(), 0);
  }
}

#define EMBERMESH_INSTANTIATE(Offset)                                               \
  template void HashTexts(const TextColumn<Offset>&, uint64_t, uint64_t*) noexcept; \
  template void ParseFloats(const TextColumn<Offset>&, double*, Parsed*) noexcept;  \
  template void ParseInts(const TextColumn<Offset>&, uint64_t*, Parsed*) noexcept;  \
  template bool SplitTexts(const TextColumn<Offset>&, std::string_view, SplitText*)
EMBERMESH_INSTANTIATE(int32_t);
EMBERMESH_INSTANTIATE(int64_t);
#undef EMBERMESH_INSTANTIATE
template OwnedText FloatTexts(const float*, size_t);
template OwnedText FloatTexts(const double*, size_t);

}  // namespace embermesh

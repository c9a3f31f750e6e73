#include "json_row.h"

#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

namespace embermesh {
namespace {

static_assert(std::endian::native == std::endian::little, "packed rows stay in this process");

bool IsDigit(char c) noexcept { return c >= '0' && c <= '9'; }

void AppendUtf8(uint32_t code, std::string* out) {
  if (code < 0x80) {
    *out += static_cast<char>(code);
    return;
  }
  const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  constexpr std::array<uint32_t, 4> kLead = {0, 0xC0, 0xE0, 0xF0};
  *out += static_cast<char>(kLead[static_cast<size_t>(more)] | code >> (6 * more));
  for (int shift = 6 * (more - 1); shift >= 0; shift -= 6) {
    *out += static_cast<char>(0x80 | (code >> shift & 0x3F));
  }
}

// Reads one message. Every step returns false for what is not common, at the place it was at.
class Scanner {
 public:
  explicit Scanner(std::string_view text) noexcept : at_(text.data()), end_(at_ + text.size()) {}

  void SkipBlanks() noexcept {
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\t' || *at_ == '\n' || *at_ == '\r')) ++at_;
  }

  bool Take(char wanted) noexcept {
    if (at_ == end_ || *at_ != wanted) return false;
    ++at_;
    return true;
  }

  bool AtEnd() const noexcept { return at_ == end_; }

  // Appends the text between quotes.
  bool String(std::string* out) {
    if (!Take('"')) return false;
    while (true) {
      const char* const start = at_;
      while (at_ != end_ && *at_ != '"' && *at_ != '\\' && static_cast<uint8_t>(*at_) >= 0x20) {
        ++at_;
      }
      out->append(start, at_);
      if (at_ == end_) return false;
      const char stop = *at_++;
      if (stop == '"') return true;
      if (stop != '\\' || !Escape(out)) return false;
    }
  }

  // Appends the text of a string, number or boolean; null sets `is_null`.
  bool Value(std::string* out, bool* is_null) {
    if (at_ == end_) return false;
    if (*at_ == '"') return String(out);
    if (*at_ == 't') return Word("true", out);
    if (*at_ == 'f') return Word("false", out);
    if (*at_ != 'n') return Number(out);
    *is_null = true;
    return Word("null", nullptr);
  }

 private:
  bool Word(std::string_view word, std::string* out) {
    if (std::string_view(at_, static_cast<size_t>(end_ - at_)).substr(0, word.size()) != word) {
      return false;
    }
    at_ += word.size();
    if (out != nullptr) out->append(word);
    return true;
  }

  bool Digits() noexcept {
    const char* const start = at_;
    while (at_ != end_ && IsDigit(*at_)) ++at_;
    return at_ != start;
  }

  bool Number(std::string* out) {
    const char* const start = at_;
    Take('-');
    if (!Take('0') && !Digits()) return false;
    const char* const whole = at_;
    if (Take('.') && !Digits()) return false;
    if (Take('e') || Take('E')) {
      if (!Take('+')) Take('-');
      if (!Digits()) return false;
    }
    if (at_ == whole) {
      out->append(start, at_);
      return true;
    }
    double value = 0;
    const auto [stop, error] = std::from_chars(start, at_, value);
    if (error != std::errc() || stop != at_) return false;
    if (value == 0 && std::signbit(value)) return false;  // FloatTexts has no -0
    out->append(FloatTexts(&value, 1).data);
    return true;
  }

  bool Escape(std::string* out) {
    if (at_ == end_) return false;
    constexpr std::string_view kNames = "\"\\/bfnrt";
    constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
    const char name = *at_++;
    if (name != 'u') {
      const size_t found = kNames.find(name);
      if (found == std::string_view::npos) return false;
      *out += kMeanings[found];
      return true;
    }
    uint32_t code = 0;
    if (!Unit(&code)) return false;
    if (code >= 0xD800 && code < 0xE000) {  // half of a pair
      uint32_t low = 0;
      if (code >= 0xDC00 || !Take('\\') || !Take('u') || !Unit(&low)) return false;
      if (low < 0xDC00 || low >= 0xE000) return false;
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    AppendUtf8(code, out);
    return true;
  }

  // Four hexadecimal digits.
  bool Unit(uint32_t* code) noexcept {
    if (end_ - at_ < 4) return false;
    const auto [stop, error] = std::from_chars(at_, at_ + 4, *code, 16);
    if (error != std::errc() || stop != at_ + 4) return false;
    at_ += 4;
    return true;
  }

  const char* at_;
  const char* end_;
};

struct Slot {
  size_t begin = 0;
  size_t size = 0;
  bool is_null = false;
  bool is_there = false;
};

void AppendLength(uint32_t length, std::string* out) {
  out->append(reinterpret_cast<const char*>(&length), sizeof length);
}

// Takes the next text from the front of a packed row; `length` is kNull for null.
bool TakeText(std::string_view* row, uint32_t* length, std::string_view* text) {
  if (row->size() < sizeof *length) return false;
  std::memcpy(length, row->data(), sizeof *length);
  row->remove_prefix(sizeof *length);
  const size_t size = *length == JsonRowReader::kNull ? 0 : *length;
  if (row->size() < size) return false;
  *text = row->substr(0, size);
  row->remove_prefix(size);
  return true;
}

}  // namespace

JsonRowReader::JsonRowReader(const std::vector<std::string>& columns) : columns_(columns.size()) {
  for (size_t i = 0; i < columns.size(); ++i) places_.emplace(columns[i], i);
}

bool JsonRowReader::Pack(std::string_view message, std::string* out) const {
  if (message.size() >= kNull / 4 || !IsUtf8(message)) return false;
  std::vector<Slot> slots(columns_);
  std::string texts;
  texts.reserve(message.size());
  std::string key;
  Scanner scan(message);
  scan.SkipBlanks();
  if (!scan.Take('{')) return false;
  do {
    scan.SkipBlanks();
    key.clear();
    if (!scan.String(&key)) return false;  // also an object without a member
    scan.SkipBlanks();
    if (!scan.Take(':')) return false;
    scan.SkipBlanks();
    Slot slot{texts.size(), 0, false, true};
    if (!scan.Value(&texts, &slot.is_null)) return false;
    slot.size = texts.size() - slot.begin;
    const auto place = places_.find(std::string_view(key));
    if (place != places_.end()) slots[place->second] = slot;
    scan.SkipBlanks();
  } while (scan.Take(','));
  if (!scan.Take('}')) return false;
  scan.SkipBlanks();
  if (!scan.AtEnd()) return false;
  out->reserve(out->size() + texts.size() + columns_ * sizeof(uint32_t));
  for (const Slot& slot : slots) {
    if (!slot.is_there) return false;
    AppendLength(slot.is_null ? kNull : static_cast<uint32_t>(slot.size), out);
    out->append(texts, slot.begin, slot.size);
  }
  return true;
}

bool JsonRowReader::Unpack(const std::vector<std::string_view>& rows,
                           std::vector<NullableText>* out) const {
  out->assign(columns_, {});
  for (NullableText& column : *out) {
    column.texts.offsets.reserve(rows.size() + 1);
    column.validity.resize((rows.size() + 7) / 8);
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    std::string_view row = rows[i];
    for (NullableText& column : *out) {
      uint32_t length = 0;
      std::string_view text;
      if (!TakeText(&row, &length, &text)) return false;
      std::string& data = column.texts.data;
      data.append(text);
      if (data.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) return false;
      column.texts.offsets.push_back(static_cast<int32_t>(data.size()));
      const bool is_null = length == kNull;
      column.has_nulls |= is_null;
      column.validity[i / 8] |= static_cast<uint8_t>(!is_null) << (i % 8);
    }
    if (!row.empty()) return false;
  }
  return true;
}

bool IsUtf8(std::string_view bytes) noexcept {
  const auto* at = reinterpret_cast<const uint8_t*>(bytes.data());
  const auto* const end = at + bytes.size();
  const auto continues = [&](int i) { return at + i < end && (at[i] & 0xC0) == 0x80; };
  while (at != end) {
    uint64_t word = 0;
    while (end - at >= 8 && (std::memcpy(&word, at, 8), (word & 0x8080808080808080U) == 0)) at += 8;
    if (at == end) return true;
    const uint8_t lead = *at;
    if (lead < 0x80) {
      ++at;
    } else if (lead >= 0xC2 && lead < 0xE0 && continues(1)) {
      at += 2;
    } else if (lead >= 0xE0 && lead < 0xF0 && continues(1) && continues(2)) {
      if ((lead == 0xE0 && at[1] < 0xA0) || (lead == 0xED && at[1] >= 0xA0)) return false;
      at += 3;
    } else if (lead >= 0xF0 && lead < 0xF5 && continues(1) && continues(2) && continues(3)) {
      if ((lead == 0xF0 && at[1] < 0x90) || (lead == 0xF4 && at[1] >= 0x90)) return false;
      at += 4;
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace embermesh

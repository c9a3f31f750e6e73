// Bounds-checked little-endian reading and writing of the block formats (docs/formats.md).
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "crc32c.h"

namespace embermesh {

static_assert(std::endian::native == std::endian::little,
              "blocks are memory images of little-endian arrays");

class ByteWriter {
 public:
  ByteWriter() = default;
  // Goes on behind `begun`.
  explicit ByteWriter(std::string begun) : out_(std::move(begun)) {}

  template <class T>
    requires std::is_trivially_copyable_v<T>
  void number(T value) {
    bytes(&value, sizeof value);
  }

  void text(std::string_view value) {  // u16 length, then the bytes
    number(static_cast<std::uint16_t>(value.size()));
    bytes(value.data(), value.size());
  }

  void bytes(const void* data, std::size_t size) {
    out_.append(static_cast<const char*>(data), size);
  }

  void reserve(std::size_t size) { out_.reserve(size); }

  // What was written so far, without a checksum.
  [[nodiscard]] std::string unsealed() && { return std::move(out_); }

  // Appends the checksum of everything so far and hands the block out.
  [[nodiscard]] std::string seal() && {
    number(masked_crc(crc32c(std::as_bytes(std::span<const char>(out_)))));
    return std::move(out_);
  }

 private:
  std::string out_;
};

// Throws std::invalid_argument, saying what was expected, instead of reading past the end.
class ByteReader {
 public:
  // `what` begins every message, e.g. "partition block".
  ByteReader(std::span<const std::byte> data, std::string_view what) : data_(data), what_(what) {}

  [[noreturn]] void refuse(const std::string& why) const {
    throw std::invalid_argument(what_ + ": " + why);
  }

  // Refuses unless expected == actual.
  template <class T>
  void check(std::string_view field, const T& expected, const T& actual) const {
    if (expected == actual) return;
    refuse(std::string(field) + " is " + show(actual) + ", expected " + show(expected));
  }

  // Verifies length and checksum of a sealed block and hides the checksum from further reading.
  void unseal() {
    constexpr std::size_t kChecksum = sizeof(std::uint32_t);
    if (data_.size() < kChecksum) refuse("truncated: " + std::to_string(data_.size()) + " bytes");
    std::uint32_t stored = 0;
    std::memcpy(&stored, data_.data() + data_.size() - kChecksum, kChecksum);
    data_ = data_.first(data_.size() - kChecksum);
    check("crc32c", stored, masked_crc(crc32c(data_)));
  }

  template <class T>
    requires std::is_trivially_copyable_v<T>
  [[nodiscard]] T number(std::string_view field) {
    T value;
    std::memcpy(&value, take(sizeof value, field).data(), sizeof value);
    return value;
  }

  [[nodiscard]] std::string text(std::string_view field) {
    const auto bytes = take(number<std::uint16_t>(field), field);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  // A text of [a-z0-9_] only.
  [[nodiscard]] std::string identifier(std::string_view field) {
    std::string value = text(field);
    const auto legal = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
    };
    if (!std::ranges::all_of(value, legal)) refuse(std::string(field) + " is " + show(value));
    return value;
  }

  // `count` items of `size` bytes each; the product may not overflow or pass the end.
  [[nodiscard]] std::span<const std::byte> array(std::uint64_t count, std::size_t size,
                                                 std::string_view field) {
    if (count > left() / size) refuse("truncated: no room for the " + std::string(field));
    return take(count * size, field);
  }

  [[nodiscard]] std::size_t left() const noexcept { return data_.size() - at_; }

 private:
  // Escaped, because a damaged text may hold anything and messages are UTF-8.
  static std::string show(const std::string& value) {
    constexpr std::string_view kHex = "0123456789abcdef";
    std::string shown = "'";
    for (const char c : value) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte >= 0x20 && byte < 0x7F) {
        shown += c;
      } else {
        shown += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
      }
    }
    return shown + "'";
  }
  template <class T>
    requires std::is_arithmetic_v<T>
  static std::string show(T value) {
    return std::to_string(value);
  }

  std::span<const std::byte> take(std::size_t size, std::string_view field) {
    if (size > left()) refuse("truncated: no room for the " + std::string(field));
    at_ += size;
    return data_.subspan(at_ - size, size);
  }

  std::span<const std::byte> data_;
  std::string what_;
  std::size_t at_ = 0;
};

}  // namespace embermesh

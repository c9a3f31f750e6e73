// How keys and values of a request travel. docs/formats.md, "Arrays on the wire", is the grammar.
//
// Values: as float32, as binary16, or as binary16 scaled by block (Persia, arXiv 2111.05897,
// section 4.2.3). A block v of kScaledBlock consecutive values goes as its L-infinity norm and
// fp16(v / norm * kKappa); the reader multiplies by norm / kKappa. So the largest value of a block
// always uses the top of binary16's range, and one 2^29 times smaller still keeps 11 bits:
// gradients, which are means over a batch and small, do not fall into the subnormals as they do
// without it.
//
// Rounding is to nearest, ties to even. What it does to a value is never silent: finite values
// beyond the largest one become the largest one and are counted, so are values that became zero.
// Infinity and NaN stay what they are. Every version of a kernel gives the same bits (simd.h).
//
// Keys: the keys of a table are distinct, in any order. They go as differences to the table's
// smallest key, in as few bytes each as the largest difference needs. Order is kept, because rows
// and gradients follow it; sorting would save about one more byte per key and cost a permutation
// of every row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace embermesh {

enum class ValueCoding : std::uint8_t { kFp32, kFp16, kScaledFp16 };

// fp32, fp16, scaled-fp16. Throws std::invalid_argument naming what is allowed.
ValueCoding parse_value_coding(std::string_view name);
std::vector<std::string> value_coding_names();

inline constexpr std::size_t kScaledBlock = 64;  // values that share a norm
inline constexpr float kKappa = 0x1p15F;         // a power of two, so that scaling by it is exact

// What encoding did to finite values.
struct Rounded {
  std::uint64_t clipped = 0;  // beyond +-65504, and now that
  std::uint64_t flushed = 0;  // not zero, and now zero
};

// Bytes of `count` encoded values.
[[nodiscard]] std::size_t encoded_bytes(ValueCoding coding, std::size_t count) noexcept;

// Writes encoded_bytes(coding, values.size()) to `out`, of any alignment.
Rounded encode_values(ValueCoding coding, std::span<const float> values, std::byte* out) noexcept;

// Fills `out`. Throws std::invalid_argument for another length than that of out.size() values, and
// for a norm that is not above 0 and finite; `out` is undefined then.
void decode_values(ValueCoding coding, std::span<const std::byte> data, std::span<float> out);

// Encodes the keys of all tables, `counts[t]` of table t. Throws std::invalid_argument unless the
// counts add up to the keys.
std::string encode_keys(std::span<const std::uint32_t> counts, std::span<const std::uint64_t> keys);

// How many keys decode_keys gives. Throws std::invalid_argument if they can't be in so many bytes:
// what a message makes a reader allocate is bounded by the message.
std::size_t count_keys(std::span<const std::uint32_t> counts, std::size_t bytes);

// Fills `out`, of count_keys(counts, data.size()) keys. Throws std::invalid_argument that names the
// table where `data` is no encoding of so many; `out` is undefined then. Sums wrap around: every
// 64-bit key is legal.
void decode_keys(std::span<const std::uint32_t> counts, std::span<const std::byte> data,
                 std::span<std::uint64_t> out);

}  // namespace embermesh

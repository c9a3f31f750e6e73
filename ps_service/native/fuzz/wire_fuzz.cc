// What a peer sends: any bytes are refused or decoded, within memory bounded by them, and what was
// decoded can be encoded and decoded again.
#include <bit>
#include <cstring>
#include <stdexcept>

#include "fuzz.h"
#include "wire_codec.h"

using embermesh::ValueCoding;
namespace fuzz = embermesh::fuzz;

namespace {

void values(ValueCoding coding, std::span<const std::byte> data, std::size_t count) {
  std::vector<float> decoded(count);
  try {
    embermesh::decode_values(coding, data, decoded);
  } catch (const std::invalid_argument&) {
    return;
  }
  std::vector<std::byte> again(embermesh::encoded_bytes(coding, count));
  embermesh::encode_values(coding, decoded, again.data());
  std::vector<float> twice(count);
  embermesh::decode_values(coding, again, twice);
  // A half decodes to what encodes to it; with a norm only the block's own norm does.
  if (coding == ValueCoding::kScaledFp16) return;
  for (std::size_t i = 0; i < count; ++i) {
    FUZZ_CHECK(decoded[i] == twice[i] || (decoded[i] != decoded[i] && twice[i] != twice[i]));
  }
}

std::vector<std::uint64_t> decode(const std::vector<std::uint32_t>& counts,
                                  std::span<const std::byte> data) {
  std::vector<std::uint64_t> keys(embermesh::count_keys(counts, data.size()));
  FUZZ_CHECK(keys.size() <= data.size());
  embermesh::decode_keys(counts, data, keys);
  return keys;
}

void keys(const std::vector<std::uint32_t>& counts, std::span<const std::byte> data) {
  std::vector<std::uint64_t> decoded;
  try {
    decoded = decode(counts, data);
  } catch (const std::invalid_argument&) {
    return;
  }
  const std::string again = embermesh::encode_keys(counts, decoded);
  FUZZ_CHECK(decode(counts, fuzz::bytes_of(again)) == decoded);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  const auto shape = input.next<std::uint8_t>();
  auto counts = input.some<std::uint32_t>(shape & 3U);
  if ((shape & 4U) != 0) {  // counts that may fit
    for (auto& count : counts) count &= 15U;
  }
  // An allocation of its own, so that reading past the end is found.
  const auto payload = input.some<std::byte>(size);
  const auto coding = static_cast<ValueCoding>((shape >> 4U) % 3U);
  const std::size_t count = (shape & 8U) != 0 ? payload.size() / 2 : shape;
  values(coding, payload, count);
  keys(counts, payload);
  return 0;
}

// Dense blocks: any bytes are refused or loaded, and what was loaded can be dumped, loaded, cut and
// joined again.
#include <stdexcept>

#include "dense_block.h"
#include "fuzz.h"

using embermesh::DenseBlock;
namespace fuzz = embermesh::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string block = fuzz::block_of(data, size);
  const std::vector<char> input(block.begin(), block.end());
  try {
    const auto loaded = DenseBlock::load(std::as_bytes(std::span(input)));
    const std::string dumped = loaded->dump();
    FUZZ_CHECK(DenseBlock::load(fuzz::bytes_of(dumped))->dump() == dumped);
    const std::span<const std::byte> parts[] = {fuzz::bytes_of(dumped), fuzz::bytes_of(dumped)};
    const std::size_t half = loaded->size() / 2;
    const auto& optimizer = loaded->rule().optimizer();
    const auto joined = DenseBlock::join(parts, half, loaded->size(), optimizer.name(),
                                         optimizer.params(), loaded->rule().options());
    FUZZ_CHECK(joined->size() == loaded->size());
  } catch (const std::invalid_argument&) {  // as it must be
  }
  return 0;
}

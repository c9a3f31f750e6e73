// Partition and delta blocks: any bytes are refused or loaded, and what was loaded can be dumped
// and loaded again.
#include <stdexcept>

#include "fuzz.h"

using embermesh::SparseShard;
namespace fuzz = embermesh::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static SparseShard shard(fuzz::tables(), fuzz::kPartitions, 1);
  static SparseShard copy(fuzz::tables(), fuzz::kPartitions, 1);
  const std::string block = fuzz::block_of(data, size);
  // An allocation of its own, so that reading past the end is found.
  const std::vector<char> input(block.begin(), block.end());
  const std::vector<std::uint64_t> before = shard.rows();
  try {
    shard.load_partition(std::as_bytes(std::span(input)));
  } catch (const std::invalid_argument&) {
    FUZZ_CHECK(shard.rows() == before);
    return 0;
  }
  for (std::uint32_t p = 0; p < fuzz::kPartitions; ++p) {
    const std::string dumped = shard.dump_partition(p);
    copy.load_partition(fuzz::bytes_of(dumped));
    FUZZ_CHECK(copy.dump_partition(p) == dumped);
  }
  FUZZ_CHECK(copy.rows() == shard.rows());
  return 0;
}

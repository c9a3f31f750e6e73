// Lifecycle blocks: any bytes are refused or set on the rows that are there, and never add a row.
#include <stdexcept>

#include "fuzz.h"

using embermesh::SparseShard;
namespace fuzz = embermesh::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static SparseShard shard(fuzz::tables(), fuzz::kPartitions, 1);
  static const bool is_filled = (fuzz::fill(shard), true);
  const std::string block = fuzz::block_of(data, size);
  const std::vector<char> input(block.begin(), block.end());
  const std::vector<std::uint64_t> before = shard.rows();
  try {
    shard.load_lifecycle(std::as_bytes(std::span(input)));
  } catch (const std::invalid_argument&) {  // as it must be
  }
  FUZZ_CHECK(is_filled && shard.rows() == before);
  const std::string dumped = shard.dump_lifecycle(0, fuzz::kNow);
  shard.load_lifecycle(fuzz::bytes_of(dumped));
  FUZZ_CHECK(shard.dump_lifecycle(0, fuzz::kNow) == dumped);
  return 0;
}

// The arrays of a pull or push as they come off the wire: counts that lie, any keys, any floats,
// with snapshots, deltas and exports in between.
#include <optional>
#include <stdexcept>

#include "fuzz.h"

using embermesh::SparseShard;
namespace fuzz = embermesh::fuzz;

namespace {

void ask(SparseShard& shard, fuzz::Input& input) {
  const auto shape = input.next<std::uint8_t>();
  auto counts = input.some<std::uint32_t>(shape & 7U);
  if ((shape & 8U) != 0) {  // counts that may add up
    for (auto& count : counts) count &= 15U;
  }
  auto keys = input.some<std::uint64_t>(shape >> 4U);
  if ((shape & 1U) != 0) {  // few keys, so that they repeat
    for (auto& key : keys) key &= 31U;
  }
  try {
    const std::size_t floats = shard.request_floats(counts, keys.size());
    FUZZ_CHECK(floats <= 5 * keys.size());
    std::vector<float> values(floats);
    shard.pull(counts, keys, (shape & 2U) != 0, values.data());
    const auto grads = input.some<float>(floats + (shape & 1U));
    const auto result = shard.push(counts, keys, grads);
    FUZZ_CHECK(result.applied + result.missing == keys.size());
  } catch (const std::invalid_argument&) {  // as it must be
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  SparseShard shard(fuzz::tables(), fuzz::kPartitions, 1);
  SparseShard copy(fuzz::tables(), fuzz::kPartitions, 1);
  fuzz::Input input(data, size);
  std::optional<std::uint64_t> since;
  for (std::uint64_t id = 1; id <= 3; ++id) {
    for (int i = 0; i < 3; ++i) ask(shard, input);
    std::vector<std::string> expected;
    for (std::uint32_t p = 0; p < fuzz::kPartitions; ++p) {
      expected.push_back(shard.dump_partition(p));
    }
    const auto snapshot = shard.begin_snapshot(id, since);
    for (std::uint32_t p = 0; p < fuzz::kPartitions; ++p) {
      ask(shard, input);
      const auto block = snapshot->dump(p);
      if (block) copy.load_partition(fuzz::bytes_of(*block));
      FUZZ_CHECK(copy.dump_partition(p) == expected[p]);
    }
    snapshot->commit();
    since = id;
  }
  return 0;
}

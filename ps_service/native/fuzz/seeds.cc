// Writes the first inputs of the fuzz targets: `fuzz_seeds DIRECTORY` makes a folder for each.
#include <filesystem>
#include <fstream>

#include "dense_block.h"
#include "fuzz.h"
#include "wire_codec.h"

namespace fuzz = embermesh::fuzz;
namespace fs = std::filesystem;

namespace {

void put(const fs::path& file, const std::string& content) {
  fs::create_directories(file.parent_path());
  std::ofstream(file, std::ios::binary) << content;
}

// A block with the byte in front that fuzz::block_of takes.
void put_block(const fs::path& file, const std::string& block) { put(file, '\0' + block); }

void blocks(const fs::path& folder) {
  embermesh::SparseShard shard(fuzz::tables(), fuzz::kPartitions, 1);
  put_block(folder / "empty", shard.dump_partition(0));
  fuzz::fill(shard);
  for (std::uint32_t p = 0; p < fuzz::kPartitions; ++p) {
    put_block(folder / ("whole-" + std::to_string(p)), shard.dump_partition(p));
  }
  shard.begin_snapshot(1, std::nullopt)->commit();
  const std::vector<std::uint64_t> keys = {1, 2, ~0ULL, 13};
  shard.push(std::vector<std::uint32_t>{3, 1}, keys, std::vector<float>(3 * 3 + 5, 0.5F));
  const auto delta = shard.begin_snapshot(2, 1);
  for (std::uint32_t p = 0; p < fuzz::kPartitions; ++p) {
    if (const auto block = delta->dump(p)) {
      put_block(folder / ("delta-" + std::to_string(p)), *block);
    }
  }
  const embermesh::BlockSize sizes[] = {{0, 0}, {0, 1}};
  embermesh::BlockBuilder removal(shard.schema(), embermesh::BlockKind::kDelta, 0,
                                  fuzz::kPartitions, sizes);
  removal.set_removed(1, 0, keys.back());
  put_block(folder / "removal", std::move(removal).seal());
}

void lifecycle(const fs::path& folder) {
  embermesh::SparseShard shard(fuzz::tables(), fuzz::kPartitions, 1);
  fuzz::fill(shard);
  for (std::uint32_t p = 0; p < fuzz::kPartitions; ++p) {
    put_block(folder / std::to_string(p), shard.dump_lifecycle(p, fuzz::kNow));
  }
}

void dense(const fs::path& folder) {
  const std::vector<float> values(7, 0.5F);
  for (const char* optimizer : {"sgd", "adagrad", "adam", "ftrl", "rmsprop", "amsgrad"}) {
    put_block(folder / optimizer, embermesh::DenseBlock(values, optimizer, {}).dump());
  }
}

void arrays(const fs::path& folder) {
  std::string bytes;
  for (int i = 0; i < 400; ++i) bytes += static_cast<char>(i * 37);
  put(folder / "ramp", bytes);
  put(folder / "zeros", std::string(64, '\0'));
  put(folder / "ones", std::string(300, '\xFF'));
  put(folder / "small", std::string("\x08\x43", 2) + std::string(200, '\1'));
}

// What the target's first byte says of each is in wire_fuzz.cc.
void wire(const fs::path& folder) {
  arrays(folder);
  const std::vector<std::uint32_t> counts = {2, 1};
  const std::vector<std::uint64_t> keys = {5, 700, ~0ULL};
  std::string head("\x06", 1);
  head.append(reinterpret_cast<const char*>(counts.data()), counts.size() * sizeof counts[0]);
  put(folder / "keys", head + embermesh::encode_keys(counts, keys));
  const std::vector<float> values(0x20, 0.25F);
  for (const auto coding : {embermesh::ValueCoding::kFp16, embermesh::ValueCoding::kScaledFp16}) {
    const auto shape = static_cast<std::size_t>(coding) << 4U;
    std::string data(embermesh::encoded_bytes(coding, shape), '\0');
    embermesh::encode_values(coding, std::span(values).first(shape),
                             reinterpret_cast<std::byte*>(data.data()));
    put(folder / ("values-" + std::to_string(shape)), static_cast<char>(shape) + data);
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) return 2;
  const fs::path root = arguments[1];
  blocks(root / "partition_block");
  dense(root / "dense_block");
  lifecycle(root / "lifecycle_block");
  arrays(root / "request");
  arrays(root / "plan");
  wire(root / "wire");
  return 0;
}

#include "dense_block.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "byte_io.h"

namespace embermesh {
namespace {

constexpr std::uint64_t kMagic = 0x00534E45'44424D45ULL;  // "EMBDENS\0"
constexpr std::uint32_t kVersion = 1;
constexpr std::string_view kWhat = "dense block";

}  // namespace

DenseBlock::DenseBlock(std::span<const float> values, std::string_view optimizer,
                       const ParamMap& params)
    : size_(values.size()), optimizer_(make_optimizer(optimizer, params)) {
  row_.resize(size_ + optimizer_->state_floats(size_));
  std::ranges::copy(values, row_.begin());
  optimizer_->init(row_.data() + size_, size_);
}

void DenseBlock::values(float* out) const {
  const std::scoped_lock lock(mutex_);
  std::copy_n(row_.begin(), size_, out);
}

void DenseBlock::apply(std::span<const float> grads) {
  if (grads.size() != size_) {
    throw std::invalid_argument("grads: the block has " + std::to_string(size_) + " floats, got " +
                                std::to_string(grads.size()));
  }
  const std::scoped_lock lock(mutex_);
  const RowUpdate update{row_.data(), grads.data(), 0};
  optimizer_->apply({&update, 1}, size_);
  ++step_;
}

std::uint64_t DenseBlock::step() const {
  const std::scoped_lock lock(mutex_);
  return step_;
}

std::string DenseBlock::dump() const {
  const ParamMap params = optimizer_->params();
  ByteWriter out;
  out.number(kMagic);
  out.number(kVersion);
  out.text(optimizer_->name());
  out.number(static_cast<std::uint32_t>(params.size()));
  for (const auto& [name, value] : params) {
    out.text(name);
    out.number(value);
  }
  out.number(static_cast<std::uint64_t>(size_));
  const std::scoped_lock lock(mutex_);
  out.number(static_cast<std::uint64_t>(row_.size()));
  out.number(step_);
  out.bytes(row_.data(), row_.size() * sizeof(float));
  return std::move(out).seal();
}

std::unique_ptr<DenseBlock> DenseBlock::load(std::span<const std::byte> data) {
  ByteReader reader(data, kWhat);
  reader.check("magic", kMagic, ByteReader(data, kWhat).number<std::uint64_t>("magic"));
  reader.unseal();
  static_cast<void>(reader.number<std::uint64_t>("magic"));
  reader.check("version", kVersion, reader.number<std::uint32_t>("version"));
  const std::string optimizer = reader.identifier("optimizer");
  ParamMap params;
  for (auto left = reader.number<std::uint32_t>("parameter count"); left > 0; --left) {
    std::string name = reader.identifier("parameter name");
    params[std::move(name)] = reader.number<double>("parameter value");
  }
  const auto size = reader.number<std::uint64_t>("size");
  const auto row_floats = reader.number<std::uint64_t>("row size");
  const auto step = reader.number<std::uint64_t>("step");
  const auto row = reader.array(row_floats, sizeof(float), "values");
  reader.check("bytes after the values", std::size_t{0}, reader.left());
  if (size > row_floats) reader.refuse("size is above the row size");
  auto block = std::make_unique<DenseBlock>(std::vector<float>(size), optimizer, params);
  reader.check("row size", static_cast<std::uint64_t>(block->row_.size()), row_floats);
  if (!row.empty()) std::memcpy(block->row_.data(), row.data(), row.size());
  block->step_ = step;
  return block;
}

std::unique_ptr<DenseBlock> DenseBlock::join(std::span<const std::span<const std::byte>> blocks,
                                             std::size_t offset, std::size_t size,
                                             std::string_view optimizer, const ParamMap& params) {
  const ByteReader refusal({}, kWhat);
  std::vector<std::unique_ptr<DenseBlock>> loaded;
  std::size_t total = 0;
  for (const auto& data : blocks) {
    loaded.push_back(load(data));
    refusal.check("optimizer", std::string(optimizer),
                  std::string(loaded.back()->optimizer_->name()));
    refusal.check("step", loaded.front()->step_, loaded.back()->step_);
    total += loaded.back()->size_;
  }
  if (offset > total || size > total - offset) {
    refusal.refuse("there are " + std::to_string(total) + " parameters, wanted " +
                   std::to_string(size) + " from " + std::to_string(offset));
  }
  auto block = std::make_unique<DenseBlock>(std::vector<float>(size), optimizer, params);
  std::size_t at = 0;
  for (const auto& stored : loaded) {
    block->copy_shared(*stored, at, offset);
    block->step_ = stored->step_;
    at += stored->size_;
  }
  return block;
}

void DenseBlock::copy_shared(const DenseBlock& other, std::size_t other_at, std::size_t at) {
  // The row is vectors of size_ floats (the values, then the state's), then the state's scalars.
  const std::size_t scalars = optimizer_->state_floats(0);
  const std::size_t vectors = 1 + optimizer_->state_floats(1) - scalars;
  const std::size_t first = std::max(at, other_at);
  const std::size_t end = std::min(at + size_, other_at + other.size_);
  for (std::size_t v = 0; v < vectors && first < end; ++v) {
    std::copy_n(other.row_.data() + v * other.size_ + (first - other_at), end - first,
                row_.data() + v * size_ + (first - at));
  }
  std::copy_n(other.row_.data() + vectors * other.size_, scalars, row_.data() + vectors * size_);
}

}  // namespace embermesh

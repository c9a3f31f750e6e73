#include "dense_block.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "byte_io.h"
#include "optimizers/adam.h"
#include "optimizers/adamw.h"

namespace embermesh {
namespace {

constexpr std::uint64_t kMagic = 0x00534E45'44424D45ULL;  // "EMBDENS\0"
constexpr std::uint32_t kVersion = 2;
constexpr std::uint32_t kPlainVersion = 1;  // has no options
constexpr std::string_view kWhat = "dense block";

void write_params(ByteWriter& out, const ParamMap& params) {
  out.number(static_cast<std::uint32_t>(params.size()));
  for (const auto& [name, value] : params) {
    out.text(name);
    out.number(value);
  }
}

ParamMap read_params(ByteReader& reader) {
  ParamMap params;
  for (auto left = reader.number<std::uint32_t>("parameter count"); left > 0; --left) {
    std::string name = reader.identifier("parameter name");
    params[std::move(name)] = reader.number<double>("parameter value");
  }
  return params;
}

UpdateOptions read_options(ByteReader& reader) {
  UpdateOptions options;
  options.schedule = reader.identifier("schedule");
  options.schedule_params = read_params(reader);
  options.clip_value = reader.number<double>("clip_value");
  options.weight_decay = reader.number<double>("weight_decay");
  return options;
}

}  // namespace

DenseBlock::DenseBlock(std::span<const float> values, std::string_view optimizer,
                       const ParamMap& params, const UpdateOptions& options)
    : size_(values.size()), rule_(optimizer, params, options) {
  if (rule_.optimizer().row_wise()) {
    throw std::invalid_argument("optimizer '" + std::string(optimizer) +
                                "' treats a row as one; the dense parameters have no rows");
  }
  if (options.clip_norm > 0.0) {
    throw std::invalid_argument(
        "clip_norm: the dense parameters lie in blocks, which have no norm of the whole; use "
        "clip_value");
  }
  row_.resize(size_ + rule_.optimizer().state_floats(size_));
  std::ranges::copy(values, row_.begin());
  rule_.optimizer().init(row_.data() + size_, size_);
}

void DenseBlock::values(float* out) const {
  const std::scoped_lock lock(mutex_);
  std::copy_n(row_.begin(), size_, out);
}

void DenseBlock::apply(std::span<const float> grads) {
  require_size("grads", grads);
  const std::scoped_lock lock(mutex_);
  const float* grad = grads.data();
  if (rule_.clips()) {
    clipped_.resize(size_);
    rule_.clip(grad, size_, clipped_.data());
    grad = clipped_.data();
  }
  rule_.step(row_.data(), row_.data() + size_, grad, size_, rule_.rate(step_ + 1));
  ++step_;
}

std::uint64_t DenseBlock::step() const {
  const std::scoped_lock lock(mutex_);
  return step_;
}

void DenseBlock::merge(std::span<const float> change, std::span<const float> second,
                       std::span<const float> momentum, float keep, std::uint64_t steps) {
  require_moments();
  require_size("change", change);
  require_size("second", second);
  if (!momentum.empty()) require_size("momentum", momentum);
  const std::scoped_lock lock(mutex_);
  float* const values = row_.data();
  float* const m = values + size_;
  float* const v = m + size_;
  for (std::size_t i = 0; i < size_; ++i) {
    values[i] += change[i];
    v[i] = keep * v[i] + second[i];
  }
  std::ranges::copy(momentum, m);
  step_ += steps;
  v[size_] = std::min(static_cast<float>(step_), Adam::kMaxStep);
}

void DenseBlock::roots(float* out) const {
  require_moments();
  const std::scoped_lock lock(mutex_);
  const float* const v = row_.data() + 2 * size_;
  for (std::size_t i = 0; i < size_; ++i) out[i] = std::sqrt(v[i]);
}

void DenseBlock::momentum(float* out) const {
  require_moments();
  const std::scoped_lock lock(mutex_);
  std::copy_n(row_.begin() + static_cast<std::ptrdiff_t>(size_), size_, out);
}

std::string DenseBlock::dump() const {
  ByteWriter out;
  out.number(kMagic);
  out.number(kVersion);
  out.text(rule_.optimizer().name());
  write_params(out, rule_.optimizer().params());
  out.text(rule_.options().schedule);
  write_params(out, rule_.options().schedule_params);
  out.number(rule_.options().clip_value);
  out.number(rule_.options().weight_decay);
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
  const auto version = reader.number<std::uint32_t>("version");
  if (version != kPlainVersion) reader.check("version", kVersion, version);
  const std::string optimizer = reader.identifier("optimizer");
  const ParamMap params = read_params(reader);
  const UpdateOptions options = version == kPlainVersion ? UpdateOptions{} : read_options(reader);
  const auto size = reader.number<std::uint64_t>("size");
  const auto row_floats = reader.number<std::uint64_t>("row size");
  const auto step = reader.number<std::uint64_t>("step");
  const auto row = reader.array(row_floats, sizeof(float), "values");
  reader.check("bytes after the values", std::size_t{0}, reader.left());
  if (size > row_floats) reader.refuse("size is above the row size");
  auto block = std::make_unique<DenseBlock>(std::vector<float>(size), optimizer, params, options);
  reader.check("row size", static_cast<std::uint64_t>(block->row_.size()), row_floats);
  if (!row.empty()) std::memcpy(block->row_.data(), row.data(), row.size());
  block->step_ = step;
  return block;
}

std::unique_ptr<DenseBlock> DenseBlock::join(std::span<const std::span<const std::byte>> blocks,
                                             std::size_t offset, std::size_t size,
                                             std::string_view optimizer, const ParamMap& params,
                                             const UpdateOptions& options) {
  const ByteReader refusal({}, kWhat);
  std::vector<std::unique_ptr<DenseBlock>> loaded;
  std::size_t total = 0;
  for (const auto& data : blocks) {
    loaded.push_back(load(data));
    refusal.check("optimizer", std::string(optimizer),
                  std::string(loaded.back()->rule_.optimizer().name()));
    total += loaded.back()->size_;
  }
  if (offset > total || size > total - offset) {
    refusal.refuse("there are " + std::to_string(total) + " parameters, wanted " +
                   std::to_string(size) + " from " + std::to_string(offset));
  }
  auto block = std::make_unique<DenseBlock>(std::vector<float>(size), optimizer, params, options);
  std::size_t at = 0;
  for (const auto& stored : loaded) {
    block->copy_shared(*stored, at, offset);
    // A step whose only rows came from a trainer that died may be missing in some blocks.
    block->step_ = std::max(block->step_, stored->step_);
    at += stored->size_;
  }
  return block;
}

void DenseBlock::copy_shared(const DenseBlock& other, std::size_t other_at, std::size_t at) {
  // The row is vectors of size_ floats (the values, then the state's), then the state's scalars.
  const std::size_t scalars = rule_.optimizer().state_floats(0);
  const std::size_t vectors = 1 + rule_.optimizer().state_floats(1) - scalars;
  const std::size_t first = std::max(at, other_at);
  const std::size_t end = std::min(at + size_, other_at + other.size_);
  for (std::size_t v = 0; v < vectors && first < end; ++v) {
    std::copy_n(other.row_.data() + v * other.size_ + (first - other_at), end - first,
                row_.data() + v * size_ + (first - at));
  }
  std::copy_n(other.row_.data() + vectors * other.size_, scalars, row_.data() + vectors * size_);
}

void DenseBlock::require_moments() const {
  const std::string_view name = rule_.optimizer().name();
  if (name == Adam::kName || name == AdamW::kName) return;
  throw std::invalid_argument("optimizer '" + std::string(name) +
                              "' has no second moment to share; expected adam or adamw");
}

void DenseBlock::require_size(std::string_view what, std::span<const float> given) const {
  if (given.size() == size_) return;
  throw std::invalid_argument(std::string(what) + ": the block has " + std::to_string(size_) +
                              " floats, got " + std::to_string(given.size()));
}

}  // namespace embermesh

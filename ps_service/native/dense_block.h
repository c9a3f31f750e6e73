// A slice of the flat array of dense parameters, with its optimizer state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "update_rule.h"

namespace embermesh {

// One long row: values[n] || state, updated by the same optimizers as sparse rows. Thread-safe; no
// reader sees a half-applied step.
class DenseBlock {
 public:
  // Throws std::invalid_argument for an unknown optimizer, parameter or option, and for one whose
  // outcome would depend on how the parameters are cut into blocks: clip_norm, row-wise optimizers.
  DenseBlock(std::span<const float> values, std::string_view optimizer, const ParamMap& params,
             const UpdateOptions& options = {});

  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] const UpdateRule& rule() const noexcept { return rule_; }

  // Copies the size() values to `out`.
  void values(float* out) const;
  // One optimizer step. Throws std::invalid_argument unless there are size() gradients.
  void apply(std::span<const float> grads);
  // Steps applied so far.
  [[nodiscard]] std::uint64_t step() const;

  // Mode kstep; adam and adamw only, else these three throw std::invalid_argument, as for spans
  // that have not size() floats. Takes in what the trainers made of a period of `steps` steps:
  // values += change; v = keep * v + second; m = momentum, unless that is empty.
  void merge(std::span<const float> change, std::span<const float> second,
             std::span<const float> momentum, float keep, std::uint64_t steps);
  // Copies the square roots of v, and m, to `out`.
  void roots(float* out) const;
  void momentum(float* out) const;

  // Optimizer, parameters, options, step, values and state as bytes, sealed with a checksum;
  // grammar in docs/formats.md.
  [[nodiscard]] std::string dump() const;
  // Throws std::invalid_argument naming the check that failed.
  static std::unique_ptr<DenseBlock> load(std::span<const std::byte> block);
  // The parameters [offset, offset + size) of dumped blocks laid end to end, with their state,
  // under `params` and `options`, which may differ from the stored ones. Throws
  // std::invalid_argument like load, and unless the blocks have this optimizer and hold that many
  // parameters. The step is the highest of the blocks'.
  static std::unique_ptr<DenseBlock> join(std::span<const std::span<const std::byte>> blocks,
                                          std::size_t offset, std::size_t size,
                                          std::string_view optimizer, const ParamMap& params,
                                          const UpdateOptions& options = {});

 private:
  // Copies what `other`, whose first parameter has number `other_at`, shares with this block, whose
  // first has number `at`.
  void copy_shared(const DenseBlock& other, std::size_t other_at, std::size_t at);
  // Throws std::invalid_argument unless the state is Adam's: m || v || t.
  void require_moments() const;
  void require_size(std::string_view what, std::span<const float> given) const;

  const std::size_t size_;
  const UpdateRule rule_;
  mutable std::mutex mutex_;
  std::uint64_t step_ = 0;
  std::vector<float> row_;
  std::vector<float> clipped_;  // the last gradient, if the rule clips
};

}  // namespace embermesh

// What an optimizer is, and the batch interface that the tables call.
//
// A row is `weights[dim] || state[state_vectors * dim + state_scalars]`, all float32. Only the
// optimizer knows what its state means. To add one: write `<name>.h` in this folder and put its
// struct into the list in all.h; binding, validation, defaults, state size and snapshots follow.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "../kinds.h"
#include "../params.h"

namespace embermesh {

// init:  fills the state of a fresh row.
// apply: one step of `weights` and `state` along `grad` (dim floats each but the state), with the
//        learning rate multiplied by `rate`, the table's schedule; 1 changes no bit.
// kStateVectors may be a member function state_vectors() instead, where parameters decide.
// kRowWise = true: weights of a row move together, so the dense parameters, which are cut into
// blocks, can't have it. kTakesDecay = false: no weight decay may be put beside it.
// Both are pure float32 arithmetic on the row: no allocation, no failure, no other memory.
template <class O>
concept Optimizer =
    requires(const O& optimizer, float* row, const float* grad, std::size_t dim, float rate) {
      { O::kName } -> std::convertible_to<std::string_view>;
      { std::span<const Param>(O::kParams) };
      requires requires {
        { O::kStateVectors } -> std::convertible_to<std::size_t>;
      } || requires {
        { optimizer.state_vectors() } noexcept -> std::convertible_to<std::size_t>;
      };
      { O::kStateScalars } -> std::convertible_to<std::size_t>;
      requires std::constructible_from<O, std::span<const double>>;
      { optimizer.init(row, dim) } noexcept -> std::same_as<void>;
      { optimizer.apply(row, row, grad, dim, rate) } noexcept -> std::same_as<void>;
    };

// One row to update: `row` is weights || state, `grad` has the table's dim floats.
struct RowUpdate {
  float* row;
  const float* grad;
  std::uint64_t hash;  // row_hash of the key
  std::uint32_t table;
};

// A configured optimizer behind one virtual call per batch. Immutable, so free to share.
class OptimizerKernel {
 public:
  OptimizerKernel() = default;
  OptimizerKernel(const OptimizerKernel&) = delete;
  OptimizerKernel& operator=(const OptimizerKernel&) = delete;
  virtual ~OptimizerKernel() = default;

  [[nodiscard]] virtual std::string_view name() const noexcept = 0;
  [[nodiscard]] virtual ParamMap params() const = 0;
  [[nodiscard]] virtual std::size_t state_floats(std::size_t dim) const noexcept = 0;
  virtual void init(float* state, std::size_t dim) const noexcept = 0;
  // Rows with float32 weights; `rate` multiplies the learning rate.
  virtual void apply(std::span<const RowUpdate> updates, std::size_t dim,
                     float rate) const noexcept = 0;
  // One row, wherever its parts are.
  virtual void apply(float* weights, float* state, const float* grad, std::size_t dim,
                     float rate) const noexcept = 0;
  // See kRowWise and kTakesDecay.
  [[nodiscard]] virtual bool row_wise() const noexcept = 0;
  [[nodiscard]] virtual bool takes_decay() const noexcept = 0;
};

// All optimizers, in the order of all.h.
std::vector<KindInfo> optimizer_kinds();

// Throws std::invalid_argument naming an unknown optimizer or a bad parameter, and what is allowed.
std::shared_ptr<const OptimizerKernel> make_optimizer(std::string_view name,
                                                      const ParamMap& params);

}  // namespace embermesh

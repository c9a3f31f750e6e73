// Turns the list of all.h into kernels: the virtual call is per batch, the row update inlines.
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "../kinds.h"
#include "../simd.h"
#include "all.h"
#include "optimizer.h"

namespace embermesh {

// Flattened, because a function that is called and not inlined is not a version of its caller: it
// is the plain one.

template <Optimizer O>
[[gnu::flatten]] EMBERMESH_SIMD void apply_rows(const O& optimizer,
                                                std::span<const RowUpdate> updates, std::size_t dim,
                                                float rate) noexcept {
  for (const RowUpdate& update : updates) {
    optimizer.apply(update.row, update.row + dim, update.grad, dim, rate);
  }
}

template <Optimizer O>
[[gnu::flatten]] EMBERMESH_SIMD void apply_row(const O& optimizer, float* weights, float* state,
                                               const float* grad, std::size_t dim,
                                               float rate) noexcept {
  optimizer.apply(weights, state, grad, dim, rate);
}

template <Optimizer O>
class KernelOf final : public OptimizerKernel {
 public:
  explicit KernelOf(std::vector<double> values)
      : values_(std::move(values)), optimizer_(std::span<const double>(values_)) {}

  [[nodiscard]] std::string_view name() const noexcept override { return O::kName; }
  [[nodiscard]] ParamMap params() const override { return name_params(O::kParams, values_); }
  [[nodiscard]] std::size_t state_floats(std::size_t dim) const noexcept override {
    return state_vectors() * dim + O::kStateScalars;
  }
  void init(float* state, std::size_t dim) const noexcept override { optimizer_.init(state, dim); }
  void apply(std::span<const RowUpdate> updates, std::size_t dim,
             float rate) const noexcept override {
    apply_rows(optimizer_, updates, dim, rate);
  }
  void apply(float* weights, float* state, const float* grad, std::size_t dim,
             float rate) const noexcept override {
    apply_row(optimizer_, weights, state, grad, dim, rate);
  }
  [[nodiscard]] bool row_wise() const noexcept override {
    if constexpr (requires { O::kRowWise; }) return O::kRowWise;
    return false;
  }
  [[nodiscard]] bool takes_decay() const noexcept override {
    if constexpr (requires { O::kTakesDecay; }) return O::kTakesDecay;
    return true;
  }

 private:
  [[nodiscard]] std::size_t state_vectors() const noexcept {
    if constexpr (requires { optimizer_.state_vectors(); }) {
      return optimizer_.state_vectors();
    } else {
      return O::kStateVectors;
    }
  }

  std::vector<double> values_;
  O optimizer_;
};

std::vector<KindInfo> optimizer_kinds() { return kinds_of<AllOptimizers>(); }

std::shared_ptr<const OptimizerKernel> make_optimizer(std::string_view name,
                                                      const ParamMap& params) {
  return make_kind<AllOptimizers, OptimizerKernel, KernelOf>("optimizer", name, params);
}

}  // namespace embermesh

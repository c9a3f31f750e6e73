// FTRL-proximal (McMahan et al. 2013) as in Keras:
//   n' = n + g^2;  sigma = (n'^-p - n^-p) / lr;  z += g - sigma * w;  n = n'
//   w = (clip(z, -l1, l1) - z) / (n^-p / lr + 2 * l2 + beta / lr)
// with p = lr_power. State: n[dim] || z[dim].
// A schedule's rate multiplies g in z: without l1 and l2 this is exactly the step of lr * rate,
// while dividing by a changing lr would shrink every weight along with it.
#pragma once

#include <algorithm>
#include <cmath>

#include "optimizer.h"

namespace embermesh {

struct Ftrl {
  static constexpr std::string_view kName = "ftrl";
  static constexpr std::array kParams = {Param{"lr", 0.001, kParamTiny},
                                         Param{"lr_power", -0.5, -4.0, 0.0},
                                         Param{"initial_accumulator", 0.1, 0.0},
                                         Param{"l1", 0.0, 0.0},
                                         Param{"l2", 0.0, 0.0},
                                         Param{"beta", 0.0, 0.0}};
  static constexpr std::size_t kStateVectors = 2;
  static constexpr std::size_t kStateScalars = 0;
  static constexpr bool kTakesDecay = false;  // the weights are solved for anew at each step

  explicit Ftrl(std::span<const double> params)
      : lr(params[0]),
        power(-params[1]),
        initial_accumulator(static_cast<float>(params[2])),
        l1(params[3]),
        l2(params[4]),
        beta(params[5]) {}

  void init(float* state, std::size_t dim) const noexcept {
    std::fill_n(state, dim, initial_accumulator);
    std::fill_n(state + dim, dim, 0.0F);
  }

  void apply(float* __restrict weights, float* __restrict state, const float* __restrict grad,
             std::size_t dim, float rate) const noexcept {
    if (power == 0.5) {
      update<float>(weights, state, grad, dim, rate, RootGrowth{});
    } else {
      // In double: the difference of two nearly equal powers, and z integrates its error.
      update<double>(weights, state, grad, dim, rate, [this](double before, double square) {
        const double after = std::pow(before + square, power);
        return Growth<double>{after, after - std::pow(before, power)};
      });
    }
  }

  // n'^-p, and by how much it is above n^-p.
  template <class Real>
  struct Growth {
    Real root;
    Real by;
  };

  // For p = -0.5: sqrt(n + g^2) - sqrt(n) = g^2 / (sqrt(n + g^2) + sqrt(n)), where nothing cancels,
  // so that float32 is enough.
  struct RootGrowth {
    Growth<float> operator()(float before, float square) const noexcept {
      const float root = std::sqrt(before + square);
      const float sum = root + std::sqrt(before);
      const float by = square / sum;
      return {root, sum == 0.0F ? 0.0F : by};
    }
  };

  // The regularised problem of one element, in the precision of Real.
  template <class Real>
  struct Proximal {
    explicit Proximal(const Ftrl& ftrl) noexcept
        : inverse_lr(static_cast<Real>(1.0 / ftrl.lr)),
          l1(static_cast<Real>(ftrl.l1)),
          l2_twice(static_cast<Real>(2.0 * ftrl.l2)),
          beta(static_cast<Real>(ftrl.beta)) {}

    // z after a gradient, times the rate, where the root grew `by` that much.
    [[nodiscard]] Real moved(Real z, Real gradient, Real by, Real weight) const noexcept {
      return z + (gradient - by * inverse_lr * weight);
    }
    // clip(z, -l1, l1) - z. std::clamp gives references, of which a compiler makes branches instead
    // of vectors.
    [[nodiscard]] Real pulled(Real z) const noexcept {
      const Real raised = z < -l1 ? -l1 : z;
      return (raised > l1 ? l1 : raised) - z;
    }
    // The weight that solves it. A zero accumulator that never saw a gradient says nothing about
    // the weight: it is kept.
    [[nodiscard]] Real solve(Real pulled_z, Real root, Real weight) const noexcept {
      const Real slope = (root + beta) * inverse_lr + l2_twice;
      const Real solved = pulled_z / slope;
      return slope > Real{0} ? solved : weight;
    }

    Real inverse_lr;
    Real l1;
    Real l2_twice;
    Real beta;
  };

  template <class Real, class Grow>
  void update(float* __restrict weights, float* __restrict state, const float* __restrict grad,
              std::size_t dim, Real rate, Grow grow) const noexcept {
    const Proximal<Real> problem(*this);
    float* __restrict accumulator = state;
    float* __restrict linear = state + dim;
    for (std::size_t i = 0; i < dim; ++i) {
      const Real g = grad[i];
      const Real before = accumulator[i];
      const Growth<Real> growth = grow(before, g * g);
      const Real z = problem.moved(linear[i], rate * g, growth.by, weights[i]);
      weights[i] = static_cast<float>(problem.solve(problem.pulled(z), growth.root, weights[i]));
      accumulator[i] = static_cast<float>(before + g * g);
      linear[i] = static_cast<float>(z);
    }
  }

  double lr;
  double power;
  float initial_accumulator;
  double l1;
  double l2;
  double beta;
};

}  // namespace embermesh

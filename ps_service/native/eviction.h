// Which rows may go. Rules of one table, each with declared parameters; a row goes as soon as one
// of them says so. This file decides; who walks the rows is in sweep.h.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kinds.h"
#include "row_meta.h"

namespace embermesh {

enum class Reason : std::uint8_t { kTtl, kLru, kLfu, kNorm, kScore };
inline constexpr std::array<std::string_view, 5> kReasonNames = {"ttl", "lru", "lfu", "norm",
                                                                 "score"};

// Rule name -> its parameters.
using RuleMap = std::map<std::string, ParamMap, std::less<>>;

// Immutable, so free to share.
class EvictionPolicy {
 public:
  // No rules: every row stays.
  EvictionPolicy() = default;
  // Throws std::invalid_argument naming an unknown rule, a bad parameter, or rules that exclude
  // each other (lru with lfu; lfu with score, which both need the row's usage).
  explicit EvictionPolicy(const RuleMap& rules);

  [[nodiscard]] bool is_off() const noexcept { return rules_.empty(); }
  // The rules with all parameters filled in.
  [[nodiscard]] const RuleMap& rules() const noexcept { return rules_; }
  [[nodiscard]] const RowMetaCodec& meta() const noexcept { return meta_; }

  // A training pull saw the row.
  [[nodiscard]] RowMeta on_pull(RowMeta meta, std::uint32_t seconds,
                                std::uint64_t bits) const noexcept {
    return meta_.touch(meta, seconds, counts_pulls_ ? 1.0 : 0.0, bits);
  }
  // A push brought `shows` samples with the row, `clicks` of them positive.
  [[nodiscard]] RowMeta on_push(RowMeta meta, std::uint32_t seconds, double shows, double clicks,
                                std::uint64_t bits) const noexcept {
    return meta_.touch(meta, seconds, score_of(shows, clicks), bits);
  }
  [[nodiscard]] bool scores_pushes() const noexcept { return score_below_ > 0.0; }

  // Rules that look at one row. `weights` are read only if has_norm().
  [[nodiscard]] bool has_norm() const noexcept { return norm_below_ > 0.0; }
  [[nodiscard]] std::optional<Reason> verdict(RowMeta meta, std::uint32_t now, const float* weights,
                                              std::size_t dim) const noexcept;

  // Rules about the number of rows: shares of one of `partitions` partitions.
  [[nodiscard]] std::uint64_t most_rows(std::uint32_t partitions) const noexcept;
  [[nodiscard]] std::uint64_t fewest_rows(std::uint32_t partitions) const noexcept;
  [[nodiscard]] Reason over_limit() const noexcept { return limit_reason_; }
  // Lower goes first.
  [[nodiscard]] std::uint64_t rank(RowMeta meta, std::uint32_t now) const noexcept;

 private:
  [[nodiscard]] double score_of(double shows, double clicks) const noexcept {
    return scores_pushes() ? show_ * (shows - clicks) + click_ * clicks : 0.0;
  }
  void read_rules();

  RuleMap rules_;
  RowMetaCodec meta_;
  bool counts_pulls_ = false;
  double ttl_ = 0.0;  // seconds; 0 = none, as below
  double rows_ = 0.0;
  Reason limit_reason_ = Reason::kLru;
  double floor_rows_ = 0.0;
  double norm_below_ = 0.0;
  double norm_idle_ = 0.0;
  double score_below_ = 0.0;
  double score_idle_ = 0.0;
  double show_ = 0.0;
  double click_ = 0.0;
};

// All rules with their parameters and defaults.
std::vector<KindInfo> eviction_rules();

}  // namespace embermesh

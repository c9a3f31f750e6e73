#include "eviction.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace embermesh {
namespace {

constexpr double kDay = 86400.0;
constexpr double kLongest = 1e9;  // seconds: 31 years
constexpr double kMostRows = 1e15;

// Not seen for `seconds`.
constexpr std::array kTtl = {Param{"seconds", 30.0 * kDay, 1.0, kLongest}};
// More than `rows`: those go that were not seen for longest.
constexpr std::array kLru = {Param{"rows", 1e7, 1.0, kMostRows}};
// More than `rows`: those go that were pulled least, where a pull counts half after `half_life`
// seconds (0: for ever).
constexpr std::array kLfu = {Param{"rows", 1e7, 1.0, kMostRows},
                             Param{"half_life", 7.0 * kDay, 0.0, kLongest}};
// Weights with an L2 norm below `below`, and not seen for `idle` seconds: a fresh row starts small.
constexpr std::array kNorm = {Param{"below", 1e-3, kParamTiny, kParamLimit},
                              Param{"idle", kDay, 0.0, kLongest}};
// show * (shows - clicks) + click * clicks below `below`, where all count half after `half_life`
// seconds, and not seen for `idle` seconds.
constexpr std::array kScore = {Param{"below", 0.8, kParamTiny, 1e6}, Param{"show", 0.1, 0.0, 1e6},
                               Param{"click", 1.0, 0.0, 1e6},
                               Param{"half_life", 30.0 * kDay, 0.0, kLongest},
                               Param{"idle", kDay, 0.0, kLongest}};
// No rule but lru and lfu leaves fewer than `rows`.
constexpr std::array kFloor = {Param{"rows", 0.0, 0.0, kMostRows}};

constexpr double kTicksPerSpan = 64.0;  // of the shortest time a rule speaks of

}  // namespace

std::vector<KindInfo> eviction_rules() {
  return {{"ttl", kTtl},   {"lru", kLru},     {"lfu", kLfu},
          {"norm", kNorm}, {"score", kScore}, {"floor", kFloor}};
}

EvictionPolicy::EvictionPolicy(const RuleMap& rules) {
  const std::vector<KindInfo> known = eviction_rules();
  for (const auto& [name, given] : rules) {
    const auto rule = std::ranges::find(known, name, &KindInfo::name);
    if (rule == known.end()) {
      std::vector<std::string_view> names;
      names.reserve(known.size());
      for (const KindInfo& kind : known) names.push_back(kind.name);
      throw std::invalid_argument("unknown eviction rule '" + name +
                                  "'; known are: " + join_names(names));
    }
    const auto values = resolve_params("eviction '" + name + "'", rule->params, given);
    rules_.emplace(name, name_params(rule->params, values));
  }
  const auto refuse_both = [&](const char* one, const char* other, const char* why) {
    if (rules_.contains(one) && rules_.contains(other)) {
      throw std::invalid_argument(std::string("eviction: '") + one + "' and '" + other +
                                  "' exclude each other: " + why);
    }
  };
  refuse_both("lru", "lfu", "both bound the number of rows");
  refuse_both("lfu", "score", "a row keeps one measure of its usage");
  read_rules();
}

void EvictionPolicy::read_rules() {
  double shortest = kLongest;
  const auto value = [&](std::string_view rule, std::string_view param) {
    const auto found = rules_.find(rule);
    return found == rules_.end() ? 0.0 : found->second.find(param)->second;
  };
  const auto span = [&](std::string_view rule, std::string_view param) {
    const double seconds = value(rule, param);
    if (seconds > 0.0) shortest = std::min(shortest, seconds);
    return seconds;
  };
  ttl_ = span("ttl", "seconds");
  norm_below_ = value("norm", "below");
  norm_idle_ = span("norm", "idle");
  score_below_ = value("score", "below");
  score_idle_ = span("score", "idle");
  show_ = value("score", "show");
  click_ = value("score", "click");
  floor_rows_ = value("floor", "rows");
  counts_pulls_ = rules_.contains("lfu");
  limit_reason_ = counts_pulls_ ? Reason::kLfu : Reason::kLru;
  rows_ = value(counts_pulls_ ? "lfu" : "lru", "rows");
  const double half_life = span(counts_pulls_ ? "lfu" : "score", "half_life");
  if (counts_pulls_ || scores_pushes()) {
    meta_ = RowMetaCodec(std::max(1.0, shortest / kTicksPerSpan), half_life);
  }
}

std::optional<Reason> EvictionPolicy::verdict(RowMeta meta, std::uint32_t now, const float* weights,
                                              std::size_t dim) const noexcept {
  const double age = meta_.age(meta, now);
  if (ttl_ > 0.0 && age > ttl_) return Reason::kTtl;
  if (scores_pushes() && age >= score_idle_ && meta_.usage(meta, now) < score_below_) {
    return Reason::kScore;
  }
  if (has_norm() && age >= norm_idle_) {
    double square = 0.0;
    for (std::size_t i = 0; i < dim; ++i) square += double{weights[i]} * double{weights[i]};
    if (square < norm_below_ * norm_below_) return Reason::kNorm;
  }
  return std::nullopt;
}

std::uint64_t EvictionPolicy::most_rows(std::uint32_t partitions) const noexcept {
  if (rows_ == 0.0) return std::numeric_limits<std::uint64_t>::max();
  return static_cast<std::uint64_t>(std::ceil(rows_ / partitions));
}

std::uint64_t EvictionPolicy::fewest_rows(std::uint32_t partitions) const noexcept {
  return static_cast<std::uint64_t>(std::ceil(floor_rows_ / partitions));
}

// Usage first, where the limit is about usage; then the time of the last sighting. A positive float
// orders like its bits, and 2^32 - 1 - age like the time it was seen.
std::uint64_t EvictionPolicy::rank(RowMeta meta, std::uint32_t now) const noexcept {
  const std::uint64_t youth =
      std::numeric_limits<std::uint32_t>::max() - static_cast<std::uint32_t>(meta_.age(meta, now));
  if (limit_reason_ != Reason::kLfu) return youth;
  const auto usage = static_cast<float>(meta_.usage(meta, now));
  return std::uint64_t{std::bit_cast<std::uint32_t>(usage)} << 32 | youth;
}

}  // namespace embermesh

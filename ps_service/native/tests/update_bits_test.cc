// A row that is trained on one machine goes on on another: every version of every kernel, and the
// plain code of builds without versions, must give these bits. They were recorded from a build
// without versions; the AVX-512 one and 64-bit Arm are held to them.
#include <gtest/gtest.h>

#include <cmath>
#include <span>
#include <vector>

#include "crc32c.h"
#include "table_config.h"

namespace embermesh {
namespace {

// A number of [-1, 1) with 12 bits behind the point.
float number_of(std::uint64_t seed) {
  return static_cast<float>(static_cast<std::int64_t>(mix64(seed) >> 51) - 4096) / 4096.0F;
}

// Rows of several widths after 20 steps along gradients from tiny to large, as a checksum.
std::uint32_t trained(std::string_view optimizer, const ParamMap& params,
                      const UpdateOptions& options, std::string_view weights) {
  std::vector<float> rows;
  for (const std::int64_t dim : {1, 2, 3, 4, 7, 8, 13, 16, 31, 64, 130}) {
    const Schema schema({TableConfig("t", dim, optimizer, params, "uniform", {}, options, weights)},
                        3);
    std::vector<float> row(schema.table(0).row_floats());
    const auto key = static_cast<std::uint64_t>(dim) * 77;
    schema.init_row(0, key, row.data());
    for (std::uint64_t step = 1; step <= 20; ++step) {
      std::vector<float> grad(static_cast<std::size_t>(dim));
      for (std::size_t i = 0; i < grad.size(); ++i) {
        grad[i] = std::ldexp(number_of(step * 1000 + i), static_cast<int>(step % 12) - 8);
      }
      const RowUpdate update{row.data(), grad.data(), key, 0};
      schema.apply(0, {&update, 1}, schema.train_step(step));
    }
    rows.insert(rows.end(), row.begin(), row.end());
  }
  return crc32c(std::as_bytes(std::span(rows)));
}

struct Case {
  const char* optimizer;
  ParamMap params;
  UpdateOptions options;
  std::uint32_t checksums[3];  // with weights in fp32, fp16 and bf16
};

std::vector<Case> all_cases() {
  const UpdateOptions clipped{.schedule = "constant",
                              .schedule_params = {},
                              .clip_value = 2.0,
                              .clip_norm = 3.0,
                              .weight_decay = 0.01};
  return {
      {"sgd", {}, {}, {0x108DB133, 0x9929499A, 0x17028555}},
      {"momentum", {{"nesterov", 1}}, {}, {0xC80D9CEA, 0x1711F48C, 0x30555F4E}},
      {"adagrad", {}, {}, {0x592D6594, 0x10BD7655, 0x076E4C3F}},
      {"adagrad", {}, clipped, {0xBD4229AA, 0x7E8D4028, 0x0209F654}},
      {"rowwise_adagrad", {}, {}, {0xBC240C76, 0x26CFA477, 0xE4707F9D}},
      {"adam", {}, {}, {0x22225C08, 0x3F8AA59F, 0x3EFC2A8A}},
      {"adamw", {}, {}, {0x2F466005, 0x908B08DB, 0xF628AC4F}},
      {"amsgrad", {}, {}, {0x62146CC6, 0x5ADE27FD, 0xF2E10F29}},
      {"rmsprop", {{"momentum", 0.5}, {"centered", 1}}, {}, {0x5694C6D1, 0xC67B1945, 0xFF501BCD}},
      {"ftrl",
       {{"l1", 0.001}, {"l2", 0.01}, {"beta", 0.5}},
       {},
       {0x9D91CDF4, 0xE6B2CC9C, 0xF00E6B83}},
      {"group_ftrl",
       {{"lr", 0.05}, {"l1", 0.001}, {"l21", 0.05}},
       {},
       {0x4A74B016, 0xFB17B6A5, 0xF538EEA0}},
  };
}

TEST(Updates, AreTheSameBitsOnEveryMachine) {
  for (const Case& one : all_cases()) {
    const std::uint32_t* expected = one.checksums;
    for (const char* weights : {"fp32", "fp16", "bf16"}) {
      EXPECT_EQ(trained(one.optimizer, one.params, one.options, weights), *expected++)
          << one.optimizer << " " << weights;
    }
  }
}

}  // namespace
}  // namespace embermesh

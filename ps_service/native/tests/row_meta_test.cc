#include "row_meta.h"

#include <gtest/gtest.h>

#include <cmath>

#include "hash.h"

namespace embermesh {
namespace {

constexpr std::uint32_t kNow = 1'800'000'000;

TEST(SmallFloat, CodesAreAscendingAndComeBack) {
  EXPECT_EQ(small_float::decode(0), 0.0);
  for (std::uint32_t code = 0; code <= small_float::kMax; ++code) {
    const double value = small_float::decode(code);
    EXPECT_EQ(small_float::encode(value, 0.0), code);
    EXPECT_EQ(small_float::encode(value, 1.0), code);
    if (code > 0) {
      EXPECT_GT(value, small_float::decode(code - 1));
    }
  }
  EXPECT_EQ(small_float::encode(1e30, 0.5), small_float::kMax);
  EXPECT_EQ(small_float::encode(1e-30, 1.0), 0U);
}

TEST(SmallFloat, RoundingIsRightOnAverage) {
  for (const double value : {0.00003, 0.3, 1.003, 777.7, 100001.0}) {
    double sum = 0.0;
    constexpr int kDraws = 40000;
    for (int i = 0; i < kDraws; ++i) {
      sum += small_float::decode(small_float::encode(value, (i + 0.5) / kDraws));
    }
    EXPECT_NEAR(sum / kDraws, value, 1e-4 * value);
  }
}

TEST(HalfPower, IsWithinRoundingOfLibm) {
  for (double x = 0.0; x < 60.0; x += 0.0371) {
    EXPECT_NEAR(half_power(x), std::exp2(-x), 4e-16 * std::exp2(-x));
  }
  EXPECT_EQ(half_power(1.0), 0.5);
  EXPECT_EQ(half_power(1e9), 0.0);
}

TEST(RowMeta, TimeLayoutKeepsTheLatestSecond) {
  const RowMetaCodec codec;
  RowMeta meta = codec.touch(0, kNow, 1.0, 0);
  EXPECT_EQ(codec.age(meta, kNow + 5), 5.0);
  meta = codec.touch(meta, kNow - 100, 1.0, 0);  // a late event
  meta = codec.touch(meta, 0, 1.0, 0);           // an event of no stated time
  EXPECT_EQ(codec.age(meta, kNow + 5), 5.0);
  EXPECT_EQ(codec.age(meta, kNow - 5), 0.0);
  EXPECT_FALSE(codec.was_seen(0));
  EXPECT_EQ(codec.age(0, kNow), 0.0);
}

TEST(RowMeta, UsageOfManySightingsIsRightOnAverage) {
  const RowMetaCodec codec(60.0, 0.0);
  constexpr int kRows = 300;
  constexpr int kSightings = 5000;
  double sum = 0.0;
  for (std::uint64_t row = 0; row < kRows; ++row) {
    RowMeta meta = 0;
    for (std::uint64_t i = 0; i < kSightings; ++i) {
      meta = codec.touch(meta, kNow, 1.0, mix64(row * 1'000'003 + i + 1));
    }
    sum += codec.usage(meta, kNow);
    EXPECT_NEAR(codec.usage(meta, kNow), kSightings, 0.35 * kSightings);
  }
  EXPECT_NEAR(sum / kRows, kSightings, 0.02 * kSightings);
}

TEST(RowMeta, UsageHalvesEveryHalfLifeHoweverOftenItIsTouched) {
  constexpr double kHalfLife = 6400.0;
  const RowMetaCodec codec(100.0, kHalfLife);
  RowMeta rarely = codec.touch(0, kNow, 1000.0, 1);
  EXPECT_NEAR(codec.usage(rarely, kNow + 6400), 500.0, 10.0);
  double sum = 0.0;
  constexpr int kRows = 400;
  for (std::uint64_t row = 0; row < kRows; ++row) {
    RowMeta often = codec.touch(0, kNow, 1000.0, 1);
    for (std::uint32_t s = 0; s <= 6400; s += 10) {
      often = codec.touch(often, kNow + s, 0.0, mix64(row * 7919 + s + 1));
    }
    sum += codec.usage(often, kNow + 6400);
  }
  EXPECT_NEAR(sum / kRows, codec.usage(rarely, kNow + 6400), 10.0);
}

TEST(RowMeta, LateEventsAddWhatIsLeftOfThem) {
  const RowMetaCodec codec(100.0, 6400.0);
  RowMeta meta = codec.touch(0, kNow, 100.0, 1);
  meta = codec.touch(meta, kNow - 6400, 100.0, 1);
  EXPECT_NEAR(codec.usage(meta, kNow), 150.0, 3.0);
  EXPECT_LT(codec.age(meta, kNow), 101.0);
}

TEST(RowMeta, RecordsComeBackInBothLayouts) {
  const RowMetaCodec time;
  EXPECT_EQ(time.pack(time.unpack(kNow, kNow + 9)), kNow);
  EXPECT_EQ(time.pack({}), 0U);
  for (const double unit : {1.0, 2.5, 3600.0}) {
    const RowMetaCodec codec(unit, 10000.0);
    EXPECT_EQ(codec.pack({}), 0U);
    for (std::uint32_t age = 0; age < 300'000; age += 1234) {
      const RowMeta meta = codec.touch(0, kNow - age, 3.7, 1);
      for (const std::uint32_t now : {kNow, kNow + 1000}) {  // any time near does
        const auto record = codec.unpack(meta, now);
        EXPECT_EQ(codec.pack(record), meta);
        EXPECT_NEAR(record.seen, kNow - age, unit + 1.0);
      }
    }
    EXPECT_EQ(codec.unpack(codec.touch(0, 0, 2.0, 1), kNow).seen, 0U);
  }
  EXPECT_EQ(RowMetaCodec(1.0, 0.0).pack({kNow, NAN}) & small_float::kMax, 0U);
}

}  // namespace
}  // namespace embermesh

#include "text_column.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "xxh64.h"

namespace embermesh {
namespace {

// Owns texts in exactly sized heap blocks, so that the address sanitizer sees every stray read.
template <typename Offset>
class Texts {
 public:
  explicit Texts(const std::vector<std::string>& texts) : offsets_{0} {
    std::string joined;
    for (const std::string& text : texts) {
      joined += text;
      offsets_.push_back(static_cast<Offset>(joined.size()));
    }
    data_ = std::make_unique<char[]>(joined.size());
    joined.copy(data_.get(), joined.size());
  }
  TextColumn<Offset> column() const { return {offsets_.data(), offsets_.size() - 1, data_.get()}; }

 private:
  std::vector<Offset> offsets_;
  std::unique_ptr<char[]> data_;
};

template <typename Offset>
class TextColumnTest : public testing::Test {};
using OffsetTypes = testing::Types<int32_t, int64_t>;
TYPED_TEST_SUITE(TextColumnTest, OffsetTypes);

TYPED_TEST(TextColumnTest, HashesEachText) {
  const Texts<TypeParam> texts({"a", "", "abc"});
  uint64_t out[3];
  HashTexts(texts.column(), 0, out);
  EXPECT_EQ(out[0], 0xD24EC4F1A98C6E5BULL);
  EXPECT_EQ(out[1], 0xEF46DB3751D8E999ULL);
  EXPECT_EQ(out[2], 0x44BC2CF5AD770999ULL);
}

TYPED_TEST(TextColumnTest, ParsesFloats) {
  const std::vector<std::string> good = {"1", "-2.5", " 3e2 ", "+4", "1e-400", "0.1", "-0"};
  const std::vector<double> expected = {1, -2.5, 300, 4, 0, 0.1, 0};
  std::vector<double> values(good.size());
  std::vector<Parsed> parsed(good.size());
  const Texts<TypeParam> texts(good);
  ParseFloats(texts.column(), values.data(), parsed.data());
  EXPECT_EQ(values, expected);
  EXPECT_EQ(parsed, std::vector<Parsed>(good.size(), Parsed::kValue));
}

TYPED_TEST(TextColumnTest, TellsMissingFromMalformedFloats) {
  const std::vector<std::string> odd = {"",     "  ",  "nan",  "NaN", "inf", "-inf", "1e400",
                                        "1.5x", "+-1", "0x10", "1,5", "-",   "+",    "1 2"};
  constexpr size_t kMissing = 4;
  std::vector<double> values(odd.size());
  std::vector<Parsed> parsed(odd.size());
  const Texts<TypeParam> texts(odd);
  ParseFloats(texts.column(), values.data(), parsed.data());
  for (size_t i = 0; i < odd.size(); ++i) {
    EXPECT_EQ(parsed[i], i < kMissing ? Parsed::kMissing : Parsed::kMalformed) << odd[i];
    EXPECT_TRUE(std::isnan(values[i])) << odd[i];
  }
}

TYPED_TEST(TextColumnTest, ParsesIntsOfAll64Bits) {
  const Texts<TypeParam> texts({"0", "-1", "18446744073709551615", "-9223372036854775808", "+7"});
  uint64_t values[5];
  Parsed parsed[5];
  ParseInts(texts.column(), values, parsed);
  EXPECT_EQ(values[0], 0U);
  EXPECT_EQ(values[1], std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(values[2], std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(values[3], 1ULL << 63);
  EXPECT_EQ(values[4], 7U);
  for (const Parsed p : parsed) EXPECT_EQ(p, Parsed::kValue);
}

TYPED_TEST(TextColumnTest, RefusesOtherInts) {
  const std::vector<std::string> bad = {
      "1.0", "18446744073709551616", "-9223372036854775809", "abc", "--1", "+-1"};
  const Texts<TypeParam> texts(bad);
  std::vector<uint64_t> values(bad.size());
  std::vector<Parsed> parsed(bad.size());
  ParseInts(texts.column(), values.data(), parsed.data());
  for (size_t i = 0; i < bad.size(); ++i) EXPECT_EQ(parsed[i], Parsed::kMalformed) << bad[i];
}

TYPED_TEST(TextColumnTest, SplitsAndDropsEmptyTokens) {
  const Texts<TypeParam> texts({"a|bc", "", "|", "||d|", "e"});
  SplitText out;
  ASSERT_TRUE(SplitTexts(texts.column(), "|", &out));
  EXPECT_EQ(out.row_offsets, (std::vector<int32_t>{0, 2, 2, 2, 3, 4}));
  EXPECT_EQ(out.tokens.offsets, (std::vector<int32_t>{0, 1, 3, 4, 5}));
  EXPECT_EQ(out.tokens.data, "abcde");
}

TYPED_TEST(TextColumnTest, SplitsAtSeparatorsOfSeveralBytes) {
  const Texts<TypeParam> texts({"x\xC2\xA7y", "\xC2"});
  SplitText out;
  ASSERT_TRUE(SplitTexts(texts.column(), "\xC2\xA7", &out));
  EXPECT_EQ(out.row_offsets, (std::vector<int32_t>{0, 2, 3}));
  EXPECT_EQ(out.tokens.data, "xy\xC2");
}

TYPED_TEST(TextColumnTest, NoRows) {
  const Texts<TypeParam> texts({});
  SplitText out;
  ASSERT_TRUE(SplitTexts(texts.column(), "|", &out));
  EXPECT_EQ(out.row_offsets, std::vector<int32_t>{0});
  HashTexts(texts.column(), 0, nullptr);
}

template <typename Value>
std::string TextOf(Value value) {
  return FloatTexts(&value, 1).data;
}

TEST(FloatTexts, IsTheShortestDecimal) {
  EXPECT_EQ(TextOf(3.0), "3");
  EXPECT_EQ(TextOf(-0.0), "0");
  EXPECT_EQ(TextOf(0.1), "0.1");
  EXPECT_EQ(TextOf(0.1F), "0.1");
  EXPECT_EQ(TextOf(1e-4F), "0.0001");
  EXPECT_EQ(TextOf(1e-5), "1e-05");
  EXPECT_EQ(TextOf(100000.0), "100000");
  EXPECT_EQ(TextOf(9007199254740993.0), "9007199254740992");
  EXPECT_EQ(TextOf(1e16), "1e+16");
  EXPECT_EQ(TextOf(-1.2345678901234567e-4), "-0.00012345678901234567");
  EXPECT_EQ(TextOf(std::numeric_limits<double>::max()), "1.7976931348623157e+308");
  EXPECT_EQ(TextOf(std::numeric_limits<double>::quiet_NaN()), "");
  EXPECT_EQ(TextOf(-std::numeric_limits<double>::infinity()), "-inf");
}

TEST(CombineHashes, IsTheHashOfTheBytesInOrder) {
  const uint64_t a[2] = {1, 0x0102030405060708ULL};
  const uint64_t b[2] = {2, 0xFFFFFFFFFFFFFFFFULL};
  uint64_t out[2];
  CombineHashes({a, b}, 2, out);
  const uint8_t expected[16] = {8,    7,    6,    5,    4,    3,    2,    1,
                                0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF};
  EXPECT_EQ(out[1], Xxh64(expected, sizeof(expected), 0));
  uint64_t swapped[2];
  CombineHashes({b, a}, 2, swapped);
  EXPECT_NE(out[0], swapped[0]);
}

}  // namespace
}  // namespace embermesh

#include "json_row.h"

#include <gtest/gtest.h>

namespace embermesh {
namespace {

const std::string kMessage =
    R"({"a": -1.5e3, "b" :"x\u00e4\ud83d\ude00\n", "c": null, "d":true, "e": "é"})";

TEST(JsonRow, PacksTheWantedColumns) {
  const JsonRowReader reader({"e", "c", "b", "a"});
  std::string row;
  ASSERT_TRUE(reader.Pack(kMessage, &row));
  std::vector<NullableText> columns;
  ASSERT_TRUE(reader.Unpack({row, row}, &columns));
  EXPECT_EQ(columns[0].texts.data, "éé");
  EXPECT_TRUE(columns[1].has_nulls);
  EXPECT_EQ(columns[1].validity, std::vector<uint8_t>{0});
  EXPECT_EQ(columns[2].texts.data, "xä😀\nxä😀\n");
  EXPECT_EQ(columns[3].texts.data, "-1500-1500");
  EXPECT_EQ(columns[3].texts.offsets, (std::vector<int32_t>{0, 5, 10}));
  EXPECT_FALSE(columns[3].has_nulls);
  EXPECT_EQ(columns[3].validity, std::vector<uint8_t>{3});
}

// In memory of exactly their size, so that a sanitizer sees a read past the end.
TEST(JsonRow, NoBeginningOfAMessageOrRowIsOne) {
  const JsonRowReader reader({"a", "b"});
  std::string row;
  ASSERT_TRUE(reader.Pack(kMessage, &row));
  std::vector<NullableText> columns;
  for (size_t size = 0; size < kMessage.size(); ++size) {
    const std::vector<char> part(kMessage.begin(), kMessage.begin() + static_cast<long>(size));
    std::string out;
    EXPECT_FALSE(reader.Pack({part.data(), part.size()}, &out)) << size;
  }
  for (size_t size = 0; size < row.size(); ++size) {
    const std::vector<char> part(row.begin(), row.begin() + static_cast<long>(size));
    EXPECT_FALSE(reader.Unpack({{part.data(), part.size()}}, &columns)) << size;
  }
  row += 'x';
  EXPECT_FALSE(reader.Unpack({row}, &columns));
}

TEST(JsonRow, Utf8) {
  for (const char* good : {"", "plain text of some length", "é", "\xE0\xA0\x80", "\xED\x9F\xBF",
                           "\xEE\x80\x80", "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF", "1234567é"}) {
    EXPECT_TRUE(IsUtf8(good)) << good;
  }
  for (const char* bad :
       {"\x80", "\xC0\x80", "\xC1\xBF", "\xC3", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xE2\x82",
        "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "1234567\xFF", "é\xC3"}) {
    EXPECT_FALSE(IsUtf8(bad)) << bad;
  }
}

}  // namespace
}  // namespace embermesh

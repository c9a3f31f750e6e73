// The only nanobind file of the trainer: checks shapes, releases the GIL, calls text_column.h
// and json_row.h.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "json_row.h"
#include "text_column.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace embermesh {
namespace {

template <typename T>
using Array = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename T>
using NewArray = nb::ndarray<nb::numpy, T, nb::ndim<1>>;
using Offsets = std::variant<Array<int32_t>, Array<int64_t>>;

template <typename T>
NewArray<T> Adopt(std::unique_ptr<T[]> values, size_t size) {
  T* data = values.release();
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  return NewArray<T>(data, {size}, owner);
}

template <typename Container, typename T>
NewArray<T> AdoptContainer(Container&& container) {
  auto kept = std::make_unique<Container>(std::forward<Container>(container));
  auto* data = reinterpret_cast<T*>(kept->data());
  const size_t size = kept->size();
  nb::capsule owner(kept.release(), [](void* p) noexcept { delete static_cast<Container*>(p); });
  return NewArray<T>(data, {size}, owner);
}

NewArray<int32_t> AdoptOffsets(std::vector<int32_t>&& offsets) {
  return AdoptContainer<std::vector<int32_t>, int32_t>(std::move(offsets));
}

NewArray<uint8_t> AdoptText(std::string&& text) {
  return AdoptContainer<std::string, uint8_t>(std::move(text));
}

// The column behind two arrays, or ValueError: offsets must not fall and must stay inside the data.
template <typename Offset>
TextColumn<Offset> Column(const Array<Offset>& offsets, const Array<uint8_t>& data) {
  if (offsets.shape(0) == 0) throw std::invalid_argument("offsets: needs n + 1 elements, has 0");
  const size_t size = offsets.shape(0) - 1;
  const Offset* at = offsets.data();
  bool valid = at[0] >= 0;
  for (size_t i = 0; i < size; ++i) valid &= at[i] <= at[i + 1];
  if (!valid) throw std::invalid_argument("offsets: must start at 0 or above and never fall");
  if (static_cast<uint64_t>(at[size]) > data.shape(0)) {
    throw std::invalid_argument("offsets: end at " + std::to_string(at[size]) + ", data has " +
                                std::to_string(data.shape(0)) + " bytes");
  }
  return {at, size, reinterpret_cast<const char*>(data.data())};
}

template <typename Body>
auto WithColumn(const Offsets& offsets, const Array<uint8_t>& data, Body body) {
  return std::visit([&](const auto& array) { return body(Column(array, data)); }, offsets);
}

NewArray<uint64_t> HashStrings(const Offsets& offsets, const Array<uint8_t>& data, uint64_t seed) {
  return WithColumn(offsets, data, [&](const auto& texts) {
    auto out = std::make_unique_for_overwrite<uint64_t[]>(texts.size());
    {
      nb::gil_scoped_release release;
      HashTexts(texts, seed, out.get());
    }
    return Adopt(std::move(out), texts.size());
  });
}

template <typename Value, typename Parse>
nb::tuple ParseTexts(const Offsets& offsets, const Array<uint8_t>& data, Parse parse) {
  static_assert(sizeof(Parsed) == sizeof(uint8_t));
  return WithColumn(offsets, data, [&](const auto& texts) {
    auto values = std::make_unique_for_overwrite<Value[]>(texts.size());
    auto parsed = std::make_unique_for_overwrite<uint8_t[]>(texts.size());
    {
      nb::gil_scoped_release release;
      parse(texts, values.get(), reinterpret_cast<Parsed*>(parsed.get()));
    }
    return nb::make_tuple(Adopt(std::move(values), texts.size()),
                          Adopt(std::move(parsed), texts.size()));
  });
}

nb::tuple Split(const Offsets& offsets, const Array<uint8_t>& data, const nb::bytes& separator) {
  const std::string_view cut(separator.c_str(), separator.size());
  if (cut.empty()) throw std::invalid_argument("separator: must not be empty");
  return WithColumn(offsets, data, [&](const auto& texts) {
    SplitText out;
    bool fits = false;
    {
      nb::gil_scoped_release release;
      fits = SplitTexts(texts, cut, &out);
    }
    if (!fits)
      throw std::invalid_argument("data: tokens take 2 GiB or more; split smaller batches");
    return nb::make_tuple(AdoptOffsets(std::move(out.row_offsets)),
                          AdoptOffsets(std::move(out.tokens.offsets)),
                          AdoptText(std::move(out.tokens.data)));
  });
}

template <typename Value>
nb::tuple FloatText(const Array<Value>& values) {
  OwnedText texts;
  {
    nb::gil_scoped_release release;
    texts = FloatTexts(values.data(), values.shape(0));
  }
  return nb::make_tuple(AdoptOffsets(std::move(texts.offsets)), AdoptText(std::move(texts.data)));
}

NewArray<uint64_t> HashCombine(const std::vector<Array<uint64_t>>& columns) {
  if (columns.empty()) throw std::invalid_argument("columns: needs at least one");
  const size_t size = columns[0].shape(0);
  std::vector<const uint64_t*> pointers;
  for (const auto& column : columns) {
    if (column.shape(0) != size) {
      throw std::invalid_argument("columns: lengths " + std::to_string(size) + " and " +
                                  std::to_string(column.shape(0)) + " differ");
    }
    pointers.push_back(column.data());
  }
  auto out = std::make_unique_for_overwrite<uint64_t[]>(size);
  {
    nb::gil_scoped_release release;
    CombineHashes(pointers, size, out.get());
  }
  return Adopt(std::move(out), size);
}

nb::object PackJson(const JsonRowReader& reader, const nb::bytes& message) {
  std::string row;  // microseconds of work: letting the GIL go would take as long
  if (!reader.Pack({message.c_str(), message.size()}, &row)) return nb::none();
  return nb::bytes(row.data(), row.size());
}

nb::list UnpackJson(const JsonRowReader& reader, const std::vector<nb::bytes>& rows) {
  std::vector<std::string_view> views;
  views.reserve(rows.size());
  for (const nb::bytes& row : rows) views.emplace_back(row.c_str(), row.size());
  std::vector<NullableText> columns;
  bool fits = false;
  {
    nb::gil_scoped_release release;
    fits = reader.Unpack(views, &columns);
  }
  if (!fits) throw std::invalid_argument("rows: not packed rows, or a column of 2 GiB or more");
  nb::list out;
  for (NullableText& column : columns) {
    nb::object validity = nb::none();
    if (column.has_nulls) {
      validity =
          nb::cast(AdoptContainer<std::vector<uint8_t>, uint8_t>(std::move(column.validity)));
    }
    out.append(nb::make_tuple(validity, AdoptOffsets(std::move(column.texts.offsets)),
                              AdoptText(std::move(column.texts.data))));
  }
  return out;
}

}  // namespace
}  // namespace embermesh

NB_MODULE(_native, m) {
  using namespace embermesh;  // NOLINT(google-build-using-namespace)
  // noconvert: another dtype is an error, never a silent copy.
  m.doc() = "Text columns to keys and numbers; see _native.pyi.";
  m.def("hash_strings", &HashStrings, "offsets"_a.noconvert(), "data"_a.noconvert(), "seed"_a = 0);
  m.def("hash_combine", &HashCombine, "columns"_a.noconvert());
  m.def(
      "parse_floats",
      [](const Offsets& offsets, const Array<uint8_t>& data) {
        return ParseTexts<double>(offsets, data, [](const auto&... args) { ParseFloats(args...); });
      },
      "offsets"_a.noconvert(), "data"_a.noconvert());
  m.def(
      "parse_ints",
      [](const Offsets& offsets, const Array<uint8_t>& data) {
        return ParseTexts<uint64_t>(offsets, data, [](const auto&... args) { ParseInts(args...); });
      },
      "offsets"_a.noconvert(), "data"_a.noconvert());
  m.def("split", &Split, "offsets"_a.noconvert(), "data"_a.noconvert(), "separator"_a);
  m.def("float_text", &FloatText<float>, "values"_a.noconvert());
  m.def("float_text", &FloatText<double>, "values"_a.noconvert());
  nb::class_<JsonRowReader>(m, "JsonRowReader")
      .def(nb::init<const std::vector<std::string>&>(), "columns"_a)
      .def("pack", &PackJson, "message"_a)
      .def("unpack", &UnpackJson, "rows"_a);
}

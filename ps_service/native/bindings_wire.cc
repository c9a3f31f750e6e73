// The codec of the wire for Python; see bindings.cc.
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <new>
#include <string>

#include "bindings.h"
#include "numpy_view.h"
#include "wire_codec.h"

namespace embermesh {

using namespace nb::literals;

static nb::tuple encode_float_array(nb::handle values, std::string_view name) {
  const ArrayView<const float> view(values, "values");
  const ValueCoding coding = parse_value_coding(name);
  const auto size = static_cast<Py_ssize_t>(encoded_bytes(coding, view.items().size()));
  const auto data = nb::steal<nb::bytes>(PyBytes_FromStringAndSize(nullptr, size));
  if (!data.is_valid()) throw std::bad_alloc();
  auto* out = reinterpret_cast<std::byte*>(PyBytes_AS_STRING(data.ptr()));
  Rounded rounded;
  {
    const nb::gil_scoped_release unlocked;
    rounded = encode_values(coding, view.items(), out);
  }
  return nb::make_tuple(data, rounded.clipped, rounded.flushed);
}

static void decode_float_array(nb::handle data, std::string_view name, nb::handle out) {
  const BytesView data_view(data, "data");
  const ArrayView<float> out_view(out, "out");
  const ValueCoding coding = parse_value_coding(name);
  const nb::gil_scoped_release unlocked;
  decode_values(coding, data_view.bytes(), out_view.items());
}

static nb::bytes encode_key_array(nb::handle counts, nb::handle keys) {
  const ArrayView<const std::uint32_t> count_view(counts, "counts");
  const ArrayView<const std::uint64_t> key_view(keys, "keys");
  std::string encoded;
  {
    const nb::gil_scoped_release unlocked;
    encoded = encode_keys(count_view.items(), key_view.items());
  }
  return to_bytes(encoded);
}

static Numpy<std::uint64_t> decode_key_array(nb::handle counts, nb::handle data) {
  const ArrayView<const std::uint32_t> count_view(counts, "counts");
  const BytesView data_view(data, "data");
  const std::size_t keys = count_keys(count_view.items(), data_view.bytes().size());
  NewArray<std::uint64_t> out(keys);
  {
    const nb::gil_scoped_release unlocked;
    decode_keys(count_view.items(), data_view.bytes(), {out.data(), keys});
  }
  return std::move(out).release({keys});
}

void bind_wire(nb::module_& m) {
  m.attr("VALUE_CODINGS") = nb::tuple(nb::cast(value_coding_names()));
  m.def(
      "encoded_bytes",
      [](std::string_view coding, std::uint64_t count) {
        return encoded_bytes(parse_value_coding(coding), count);
      },
      "coding"_a, "count"_a);
  m.def("encode_values", &encode_float_array, "values"_a.none(), "coding"_a);
  m.def("decode_values", &decode_float_array, "data"_a.none(), "coding"_a, "out"_a.none());
  m.def("encode_keys", &encode_key_array, "counts"_a.none(), "keys"_a.none());
  m.def("decode_keys", &decode_key_array, "counts"_a.none(), "data"_a.none());
}

}  // namespace embermesh

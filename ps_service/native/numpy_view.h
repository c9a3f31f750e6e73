// Typed, checked views of Python arrays for bindings.cc. Every refusal is a ValueError that names
// the argument, what was expected and what came.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

namespace embermesh {

template <class T>
struct NumpyType;  // numpy's name, and the buffer-protocol letters that an item of this size may
                   // have
template <>
struct NumpyType<float> {
  static constexpr std::string_view kName = "float32", kLetters = "f";
};
template <>
struct NumpyType<std::int32_t> {
  static constexpr std::string_view kName = "int32", kLetters = "il";
};
template <>
struct NumpyType<std::uint16_t> {
  static constexpr std::string_view kName = "uint16", kLetters = "H";
};
template <>
struct NumpyType<std::uint32_t> {
  static constexpr std::string_view kName = "uint32", kLetters = "IL";
};
template <>
struct NumpyType<std::uint64_t> {
  static constexpr std::string_view kName = "uint64", kLetters = "QL";
};

// Holds an object's buffer for as long as it lives; made and destroyed with the GIL held.
class PyBuffer {
 public:
  PyBuffer(nanobind::handle object, const char* name, int flags) : name_(name) {
    if (PyObject_GetBuffer(object.ptr(), &view_, flags) == 0) return;
    PyErr_Clear();
    refuse("a C-contiguous" + std::string((flags & PyBUF_WRITABLE) != 0 ? ", writable" : "") +
               " array or buffer",
           describe(object));
  }
  PyBuffer(const PyBuffer&) = delete;
  PyBuffer& operator=(const PyBuffer&) = delete;
  ~PyBuffer() { PyBuffer_Release(&view_); }

  [[nodiscard]] std::span<const std::byte> bytes() const noexcept {
    return {static_cast<const std::byte*>(view_.buf), static_cast<std::size_t>(view_.len)};
  }

 protected:
  [[noreturn]] void refuse(const std::string& expected, const std::string& actual) const {
    throw std::invalid_argument(std::string(name_) + ": expected " + expected + ", got " + actual);
  }

  static std::string describe(nanobind::handle object) {
    if (!nanobind::hasattr(object, "dtype")) return text_of(nanobind::borrow(object.type()));
    return "an array of " + text_of(object.attr("dtype")) + ", shape " +
           text_of(object.attr("shape")) + ", strides " + text_of(object.attr("strides"));
  }

  static std::string text_of(const nanobind::object& object) {
    const auto text = nanobind::steal<nanobind::str>(PyObject_Str(object.ptr()));
    if (!text.is_valid()) nanobind::raise_python_error();
    return text.c_str();
  }

  const char* name_;
  Py_buffer view_{};
};

// The bytes of any buffer: bytes, bytearray, memoryview, a contiguous array.
class BytesView : public PyBuffer {
 public:
  BytesView(nanobind::handle object, const char* name) : PyBuffer(object, name, PyBUF_SIMPLE) {}
};

// A C-contiguous array of T, read-only unless T is not const.
template <class T>
class ArrayView : public PyBuffer {
  using Type = NumpyType<std::remove_const_t<T>>;

 public:
  // Accepts `min_dims` to `max_dims` dimensions.
  ArrayView(nanobind::handle object, const char* name, int min_dims = 1, int max_dims = 1)
      : PyBuffer(object, name,
                 PyBUF_FORMAT | PyBUF_C_CONTIGUOUS | (std::is_const_v<T> ? 0 : PyBUF_WRITABLE)) {
    check(object, min_dims, max_dims);
  }

  [[nodiscard]] std::span<T> items() const noexcept {
    return {static_cast<T*>(view_.buf), static_cast<std::size_t>(view_.len) / sizeof(T)};
  }

  // Of an array that has dimensions, the length of the first.
  [[nodiscard]] std::size_t rows() const noexcept {
    return static_cast<std::size_t>(view_.shape[0]);
  }

  // Of an array of two dimensions, the length of the second.
  [[nodiscard]] std::size_t columns() const noexcept {
    return static_cast<std::size_t>(view_.shape[1]);
  }

  // Refuses any shape but (rows, columns).
  void expect_shape(std::size_t rows, std::size_t columns) const {
    if (view_.ndim == 2 && static_cast<std::size_t>(view_.shape[0]) == rows &&
        static_cast<std::size_t>(view_.shape[1]) == columns) {
      return;
    }
    refuse("shape (" + std::to_string(rows) + ", " + std::to_string(columns) + ")", shape());
  }

  // Refuses any other number of items.
  void expect_size(std::size_t size) const {
    if (items().size() == size) return;
    refuse(std::to_string(size) + " values", std::to_string(items().size()));
  }

 private:
  void check(nanobind::handle object, int min_dims, int max_dims) const {
    std::string_view format = view_.format == nullptr ? "B" : view_.format;
    if (format.starts_with('@') || format.starts_with('=') || format.starts_with('<')) {
      format.remove_prefix(1);
    }
    if (format.size() != 1 || Type::kLetters.find(format[0]) == std::string_view::npos ||
        view_.itemsize != sizeof(T)) {
      refuse("an array of " + std::string(Type::kName), describe(object));
    }
    if (view_.ndim < min_dims || view_.ndim > max_dims) {
      refuse(std::to_string(min_dims) + (min_dims == max_dims ? "" : " or 2") + " dimension(s)",
             "shape " + shape());
    }
    if (reinterpret_cast<std::uintptr_t>(view_.buf) % alignof(T) != 0) {
      refuse("memory aligned to " + std::to_string(alignof(T)) + " bytes", "an unaligned view");
    }
  }

  [[nodiscard]] std::string shape() const {
    std::string text = "(";
    for (int i = 0; i < view_.ndim; ++i) {
      text += (i == 0 ? "" : ", ") + std::to_string(view_.shape[i]);
    }
    return text + ")";
  }
};

}  // namespace embermesh

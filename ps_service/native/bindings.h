// What the nanobind files share: result arrays, bytes, catalogues.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kinds.h"

namespace embermesh {

namespace nb = nanobind;

template <class T>
using Numpy = nb::ndarray<nb::numpy, T>;

// An uninitialised array that owns its memory; numpy frees it.
template <class T>
struct NewArray {
  explicit NewArray(std::size_t size) : items(std::make_unique_for_overwrite<T[]>(size)) {}

  [[nodiscard]] T* data() const { return items.get(); }

  Numpy<T> release(std::initializer_list<std::size_t> shape) && {
    const nb::capsule owner(items.get(), [](void* p) noexcept { delete[] static_cast<T*>(p); });
    return Numpy<T>(items.release(), shape, owner);
  }

  std::unique_ptr<T[]> items;
};

inline nb::bytes to_bytes(const std::string& data) { return nb::bytes(data.data(), data.size()); }

inline nb::dict describe_kinds(const std::vector<KindInfo>& kinds) {
  nb::dict catalogue;
  for (const KindInfo& kind : kinds) {
    nb::dict defaults;
    for (const Param& param : kind.params) {
      defaults[nb::str(param.name.data(), param.name.size())] = param.default_value;
    }
    catalogue[nb::str(kind.name.data(), kind.name.size())] = defaults;
  }
  return catalogue;
}

// DenseBlock.
void bind_dense(nb::module_& m);

// The codec of the wire.
void bind_wire(nb::module_& m);

}  // namespace embermesh

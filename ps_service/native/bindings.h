// What the nanobind files share: result arrays, bytes, catalogues.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "kinds.h"

namespace embermesh {

namespace nb = nanobind;

template <class T>
using Numpy = nb::ndarray<nb::numpy, T>;

// An uninitialised array of numbers that owns its memory; numpy frees it. It begins at a cache
// line: rows of whole lines then take no more of them than they must, and can be streamed.
template <class T>
class NewArray {
 public:
  explicit NewArray(std::size_t size)
      : items_(static_cast<T*>(::operator new(size * sizeof(T), kAlignment))) {}

  [[nodiscard]] T* data() const { return items_.get(); }

  Numpy<T> release(std::initializer_list<std::size_t> shape) && {
    const nb::capsule owner(items_.get(), [](void* p) noexcept { Free()(p); });
    return Numpy<T>(items_.release(), shape, owner);
  }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(void* p) const noexcept { ::operator delete(p, kAlignment); }
  };

  std::unique_ptr<T[], Free> items_;
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

// When a request happens, as its caller says: what may depend on time depends on nothing else.
#pragma once

#include <cstdint>

namespace embermesh {

struct Moment {
  std::uint64_t step = 1;     // of training, from 1
  std::uint32_t seconds = 0;  // event time, Unix seconds; 0 = not stated: no row's age changes
};

}  // namespace embermesh

// Python's side of admission, eviction and statistics.
#pragma once

#include <nanobind/nanobind.h>

#include "sparse_shard.h"

namespace embermesh {

// RowPolicy and the forms of statistics.
void bind_row_policy(nanobind::module_& m);

// The shard's verbs about the coming and going of rows.
void bind_lifecycle_verbs(nanobind::class_<SparseShard>& shard);

}  // namespace embermesh

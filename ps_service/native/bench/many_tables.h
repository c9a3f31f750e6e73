// A trainer's requests: 26 tables, and one or two keys of each to a partition.
#pragma once

#include <cstddef>

#include "contest.h"

namespace embermesh::bench {

// Pull and push of one batch of the training benchmark's shape (4096 samples of 26 slots, Zipf;
// some 26,000 distinct keys of 1.55 M rows), in nanoseconds of one thread's time per key: the same
// keys in 26 tables and in one, in 1024 partitions and in 64 (_64p).
Results measure_many_tables(std::size_t rounds);

}  // namespace embermesh::bench

#!/usr/bin/env bash
# Builds the fuzz targets with clang and runs each: tools/fuzz.sh SECONDS CORPUS JOBS
#
# A finding stops the run with the input in build/fuzz-findings/; repeat it with
#   build/fuzz/ps_service/native/NAME_fuzz build/fuzz-findings/NAME-crash-...
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=$1 corpus=$2 jobs=$3
targets="partition_block lifecycle_block dense_block request plan wire"

cxx=""
for name in clang++ clang++-{21..14}; do
  if command -v "$name" >/dev/null; then cxx=$name && break; fi
done
if [ -z "$cxx" ]; then
  echo "fuzz: clang++ is missing (Debian: apt-get install clang-14 libclang-rt-14-dev)" >&2
  exit 1
fi
probe=$(mktemp -d)
trap 'rm -rf "$probe"' EXIT
echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, decltype(sizeof 0)) { return 0; }' >"$probe/probe.cc"
if ! "$cxx" -fsanitize=fuzzer,address "$probe/probe.cc" -o "$probe/probe" 2>"$probe/log"; then
  echo "fuzz: $cxx can't link a fuzz target; its runtime is missing" \
    "(Debian: apt-get install libclang-rt-${cxx##*-}-dev):" >&2
  tail -n 3 "$probe/log" >&2
  exit 1
fi

cmake -S ps_service/native -B build/fuzz -DCMAKE_CXX_COMPILER="$cxx" -DEMBERMESH_BUILD_FUZZERS=ON \
  -DEMBERMESH_BUILD_PYTHON=OFF -DEMBERMESH_SANITIZE=address -DCMAKE_BUILD_TYPE=RelWithDebInfo --log-level=WARNING
cmake --build build/fuzz -j "$jobs" -- --no-print-directory >"$probe/log" || { cat "$probe/log" && exit 1; }
build/fuzz/fuzz_seeds build/fuzz-seeds
mkdir -p build/fuzz-findings
for target in $targets; do
  mkdir -p "$corpus/$target"
  echo "fuzz: $target, $seconds s"
  "build/fuzz/${target}_fuzz" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
    -verbosity=0 -artifact_prefix="build/fuzz-findings/$target-" "$corpus/$target" "build/fuzz-seeds/$target"
done
echo "fuzz: nothing found"

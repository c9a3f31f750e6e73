#!/usr/bin/env bash
# Compiles the native core for aarch64 and, where qemu is there, runs its tests that pin bits: tools/check_aarch64.sh JOBS
#
# Initial rows, hashes, 16-bit weights and optimizers promise the same bits on every machine; an emulated one is a machine.
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=$1 build=build/aarch64
pinned="hash initializer row_codec schedule crc32c flat_index thread_team"

cxx=aarch64-linux-gnu-g++
if ! command -v "$cxx" >/dev/null; then
  echo "check-aarch64: $cxx is missing (Debian: apt-get install g++-aarch64-linux-gnu)" >&2
  exit 1
fi
cmake -S ps_service/native -B "$build" -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
  -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_CXX_FLAGS=-Werror -DEMBERMESH_BUILD_PYTHON=OFF --log-level=WARNING
cmake --build "$build" -j "$jobs" --target embermesh_core -- --no-print-directory >"$build/log" || { cat "$build/log" && exit 1; }
echo "check-aarch64: the core compiles"

qemu=$(command -v qemu-aarch64 || command -v qemu-aarch64-static || true)
if [ -z "$qemu" ] || [ ! -d /usr/src/googletest ]; then
  echo "check-aarch64: tests are left out: they need qemu and the source of googletest (Debian: qemu-user googletest)"
  exit 0
fi
gtest=/usr/src/googletest/googletest
"$cxx" -std=c++17 -O1 -I "$gtest/include" -I "$gtest" -c "$gtest/src/gtest-all.cc" -o "$build/gtest.o"
"$cxx" -std=c++17 -O1 -I "$gtest/include" -c "$gtest/src/gtest_main.cc" -o "$build/gtest_main.o"
for test in $pinned; do
  "$cxx" -std=c++20 -O1 -static -I "$gtest/include" -I ps_service/native "ps_service/native/tests/${test}_test.cc" \
    "$build/gtest_main.o" "$build/gtest.o" "$build/libembermesh_core.a" -o "$build/${test}_test"
  "$qemu" "$build/${test}_test" --gtest_brief=1
done

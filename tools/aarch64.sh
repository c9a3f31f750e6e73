#!/usr/bin/env bash
# Cross-compiles everything native for 64-bit Arm and runs its C++ tests in an emulator: tools/aarch64.sh JOBS SECONDS
#
# Left out are the stress tests, for which an emulator takes minutes, and what measures time. The others have SECONDS.
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=$1 seconds=$2
cxx=aarch64-linux-gnu-g++
gtest=/usr/src/googletest
cross=(-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 "-DCMAKE_CXX_COMPILER=$cxx"
  --log-level=WARNING)

command -v "$cxx" >/dev/null || { echo "aarch64: $cxx is missing (Debian: apt-get install g++-aarch64-linux-gnu)" >&2 && exit 1; }
[ -e "$gtest/CMakeLists.txt" ] || { echo "aarch64: GoogleTest's sources are missing (Debian: apt-get install libgtest-dev)" >&2 && exit 1; }
emulator=$(command -v qemu-aarch64-static || command -v qemu-aarch64 || true)
[ "$(uname -m)" != aarch64 ] || emulator=env

if [ ! -e build/aarch64-gtest/installed/lib/cmake/GTest/GTestConfig.cmake ]; then
  cmake -S "$gtest" -B build/aarch64-gtest "${cross[@]}" -DBUILD_GMOCK=OFF -DCMAKE_INSTALL_LIBDIR=lib \
    -DCMAKE_INSTALL_PREFIX="$PWD/build/aarch64-gtest/installed"
  cmake --build build/aarch64-gtest -j "$jobs" --target install -- --no-print-directory >/dev/null
fi
cmake -S . -B build/aarch64 "${cross[@]}" -DEMBERMESH_BUILD_TESTS=ON -DCMAKE_CROSSCOMPILING_EMULATOR="$emulator" \
  -DGTest_DIR="$PWD/build/aarch64-gtest/installed/lib/cmake/GTest" -DCMAKE_GTEST_DISCOVER_TESTS_DISCOVERY_MODE=PRE_TEST
cmake --build build/aarch64 -j "$jobs"
if [ -z "$emulator" ]; then
  echo "aarch64: compiled; no test ran, because there is no emulator (Debian: apt-get install qemu-user-static)" >&2
  exit 1
fi
export QEMU_LD_PREFIX=/usr/aarch64-linux-gnu # where the emulator finds the C++ library
status=0
timeout "$seconds" ctest --test-dir build/aarch64 --output-on-failure -j "$jobs" --no-tests=error \
  -E 'Stress|NoSliceHoldsTheLockForLong' || status=$?
[ "$status" != 124 ] || echo "aarch64: the tests were stopped after $seconds s" >&2
exit "$status"

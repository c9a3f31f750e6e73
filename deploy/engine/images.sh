# The images that docker-compose.yml and deploy/Dockerfile name and that aren't ours. Sourced by engine.sh, which gives say,
# fail, have, apt_install and the folders. A pull is tried first; where none works, the same part is built from packages
# under the same name and tag, so the files that name it stay what a user runs. Such an image carries the label embermesh.built.

readonly SUITE=bookworm # the Debian whose python3 is that of python:3.11-slim
PULLS=yes               # no: a pull has failed in this run, so the others would too
WHY=                    # an image is missing

# Names from the compose file, so that there is no second list of versions.
image_of() {
  sed -n "s|^ *image: *\($1:[^ ]*\) *$|\1|p" "$ROOT/docker-compose.yml" | head -n 1
}

pull() {
  [ "$PULLS" = yes ] || return 1
  timeout "$PULL_SECONDS" docker pull --quiet "$1" >"$DIR/pull.log" 2>&1 && return
  PULLS=no
  say "images can't be pulled here ($(tail -n 1 "$DIR/pull.log")): building from packages"
  return 1
}

# image NAME RECIPE: there, pulled, or built by the function RECIPE.
image() {
  local name=$1 recipe=$2 built
  if built=$(docker image inspect --format '{{index .Config.Labels "embermesh.built"}}' "$name" 2>/dev/null); then
    [ -n "$built" ] && echo "$name built" || echo "$name pulled"
  elif pull "$name"; then
    echo "$name pulled"
  elif "$recipe" "$name"; then
    echo "$name built"
  else
    echo "$name missing: $WHY"
  fi
}

all_images() {
  image "python:3.11-slim" build_base
  image "$(image_of redis)" build_redis
  image "$(image_of apache/kafka)" build_kafka
  image "$(image_of prom/prometheus)" build_prometheus
  image "$(image_of prom/alertmanager)" build_alertmanager
  image "$(image_of grafana/grafana)" build_nothing
}

# Lines of sources.list for SUITE as this machine's apt has them; the mirror is the first.
apt_sources() {
  apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
    grep -E " $SUITE(-security|-updates)? " | sort -u
}

# debootstrap's smallest Debian with Python, pip and Python's headers: what python:3.11-slim offers.
build_base() {
  apt_install debootstrap
  local root=$DIR/base mirror
  mirror=$(apt_sources | awk -v suite="$SUITE" '$3 == suite {print $2; exit}')
  say "building $1 with debootstrap (a minute or two)"
  rm -rf "$root"
  debootstrap --variant=minbase --include=ca-certificates,python3,python3-pip,python3-venv "$SUITE" "$root" $mirror \
    >"$DIR/debootstrap.log" 2>&1 || { WHY="debootstrap failed, see $DIR/debootstrap.log"; return 1; }
  apt_sources >"$root/etc/apt/sources.list"
  # As in the image that this one stands for: no sync after each file, no translated descriptions.
  echo force-unsafe-io >"$root/etc/dpkg/dpkg.cfg.d/docker-apt-speedup"
  echo 'Acquire::Languages "none";' >"$root/etc/apt/apt.conf.d/docker-no-languages"
  # A proxy's certificate that this machine trusts, the image's pip and apt trust too.
  cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
  ln -sf python3 "$root/usr/bin/python"
  rm -f "$root/usr/lib/python3.11/EXTERNALLY-MANAGED"
  chroot "$root" sh -c "apt-get update -qq && cd /tmp && apt-get download -qq libpython3.11-dev && \
    dpkg-deb --fsys-tarfile libpython3.11-dev_*.deb | tar -x -C / --wildcards './usr/include/*' && rm -f *.deb" \
    >>"$DIR/debootstrap.log" 2>&1 || { WHY="no Python headers, see $DIR/debootstrap.log"; return 1; }
  rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* "$root"/var/log/*.log
  rm -rf "$root"/usr/share/{doc,locale,man}/*
  mkdir -p "$root/usr/share/man/man1" # some packages' scripts write there
  tar -C "$root" -c . | docker import --change 'CMD ["python3"]' --change 'LABEL embermesh.built=debootstrap' \
    --change 'ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt' - "$1" >/dev/null
  rm -rf "$root"
}

# from_packages NAME FOLDER: docker build with a tar on stdin; the classic builder needs no plugin.
from_packages() {
  local log=$DIR/$2.log
  say "building $1 from packages"
  tar -c -C "$HERE/images/$2" . "${@:3}" |
    DOCKER_BUILDKIT=0 docker build --network host --tag "$1" --label embermesh.built=packages - >"$log" 2>&1 ||
    { WHY="docker build failed, see $log"; return 1; }
}

build_redis() { from_packages "$1" redis; }
build_prometheus() { from_packages "$1" prometheus; }
build_alertmanager() { from_packages "$1" alertmanager; }

build_kafka() {
  [ -e "$ROOT/.cache/kafka/lib/.complete" ] || "$ROOT/tools/setup.sh" kafka >&2
  [ -e "$ROOT/.cache/kafka/lib/.complete" ] || { WHY="its jars are not there (tools/setup.sh kafka)"; return 1; }
  from_packages "$1" kafka -C "$ROOT/.cache/kafka" lib
}

build_nothing() { WHY="image not available"; return 1; }

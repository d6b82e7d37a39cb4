#!/usr/bin/env bash
# build.sh - builds the programs of a real one-node Kubernetes from their Go modules, without a
# container registry or a page of releases. The first build takes twenty minutes on two idle cores;
# programs in the cache at the wanted version are not built again.
#
#   build.sh          everything
#   build.sh here     succeeds when everything is built already
#
# `go install PACKAGE@VERSION` refuses modules with replacements by folder, such as Kubernetes and
# etcd. So a wrapper module requires each, and points those replacements at the published modules.
set -euo pipefail; shopt -s inherit_errexit
here=$(cd "$(dirname "$0")" && pwd); . "$here/settings.sh"
export GOFLAGS=-mod=mod GOTOOLCHAIN=local GOWORK=off CGO_ENABLED=0

PROGRAMS=(kube-apiserver kube-controller-manager kube-scheduler kubectl kubelet kube-proxy etcd bridge host-local loopback portmap coredns metrics-server enforcer pause)

built() { local it; for it in "${PROGRAMS[@]}"; do [ -x "$BIN/$it" ] || return 1; done; }
case ${1:-} in
  '') ;;
  here) built; exit ;;
  *) sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
mkdir -p "$BIN" "$CACHE/store" "$CACHE/src"
exec 8> "$CACHE/lock"; flock 8

wrapper() { # NAME MODULE VERSION REPLACED-BY: makes the module, prints its folder
  local name=$1 module=$2 version=$3 published=$4 dir=$CACHE/src/$1-$3 theirs debug it
  if [ ! -f "$dir/.ready" ]; then
    rm -rf "$dir"; mkdir -p "$dir"
    theirs=$(cd "$dir" && GOFLAGS='' go mod download -json "$module@$version" | sed -n 's/^\t"GoMod": "\(.*\)",\{0,1\}$/\1/p')
    [ -f "$theirs" ] || die "$module@$version cannot be fetched"
    { echo "module braid.local/$name"; echo; sed -n 's/^go /go /p' "$theirs"; } > "$dir/go.mod"
    debug=$(sed -n 's/^godebug default=/default=/p' "$theirs")
    ( cd "$dir"
      [ -z "$debug" ] || go mod edit -godebug="$debug"
      go mod edit -require="$module@$version"
      for it in $(awk '/FORBIDDEN/ {next} $2=="=>" && $3 ~ /^\.\.?\// {print $1} $1=="replace" && $3=="=>" && $4 ~ /^\.\.?\// {print $2}' "$theirs"); do
        go mod edit -replace="$it=$it@$published"
      done )
    touch "$dir/.ready"
  fi
  echo "$dir"
}

build() { # NAME VERSION FOLDER PACKAGE [LINKER-FLAGS]
  local out=$CACHE/store/$1-$2-r$RECIPE start=$SECONDS
  if [ ! -x "$out" ]; then
    log "building $1 $2"
    ( cd "$3" && nice -n 15 go build -trimpath -buildvcs=false -ldflags "-s -w ${5:-}" -o "$out.new" "$4" ) || die "$1 is not built"
    mv "$out.new" "$out"
    log "$1 $2: $((SECONDS - start)) s, $(($(stat -c %s "$out") >> 20)) MiB"
  fi
  ln -sfn "$out" "$BIN/$1"
}

"$here/../../dev/need.sh" go
export PATH=${BRAID_CACHE:-$HOME/.cache/braid}/go/bin:$PATH
start=$SECONDS
minor=${K8S_VERSION#v1.}; minor=${minor%%.*}
base=k8s.io/component-base/version client=k8s.io/client-go/pkg/version
flags="-X $base.gitVersion=$K8S_VERSION -X $base.gitMajor=1 -X $base.gitMinor=$minor -X $base.gitTreeState=clean"
flags="$flags -X $client.gitVersion=$K8S_VERSION -X $client.gitMajor=1 -X $client.gitMinor=$minor"
kubernetes=$(wrapper kubernetes k8s.io/kubernetes "$K8S_VERSION" "v0.${K8S_VERSION#v1.}")
for name in kube-apiserver kube-controller-manager kube-scheduler kubectl kubelet kube-proxy; do
  build "$name" "$K8S_VERSION" "$kubernetes" "k8s.io/kubernetes/cmd/$name" "$flags"
done
build etcd "$ETCD_VERSION" "$(wrapper etcd go.etcd.io/etcd/server/v3 "$ETCD_VERSION" "$ETCD_VERSION")" go.etcd.io/etcd/server/v3
plugins=github.com/containernetworking/plugins
cni=$(wrapper cni $plugins "$CNI_VERSION" "$CNI_VERSION")
for name in main/bridge ipam/host-local main/loopback meta/portmap; do
  build "${name#*/}" "$CNI_VERSION" "$cni" "$plugins/plugins/$name"
done
dns=$(wrapper coredns github.com/coredns/coredns "$COREDNS_VERSION" "$COREDNS_VERSION")
cp "$here/coredns/main.go" "$dns/"
build coredns "$COREDNS_VERSION" "$dns" .
metrics=sigs.k8s.io/metrics-server
build metrics-server "$METRICS_VERSION" "$(wrapper metrics-server $metrics "$METRICS_VERSION" "$METRICS_VERSION")" $metrics/cmd/metrics-server
# Both are programs of this repository; the go.sum of the enforcer pins its modules.
GOFLAGS=-mod=readonly build enforcer "$(cat "$here"/enforcer/* | sha256sum | cut -c1-12)" "$here/enforcer" .
build pause "$(sha256sum < "$here/pause/main.go" | cut -c1-12)" "$here/pause" .
log "built in $((SECONDS - start)) s; $(du -shL "$BIN" | cut -f1) in $BIN"

#!/usr/bin/env bash
# down.sh - stops the cluster and removes everything that up.sh made (not $CACHE). Safe at any time.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd); . "$here/settings.sh"
[ "$(id -u)" = 0 ] || die "needs root"
case $STATE in /|/tmp|/var|/root|"$HOME"|"") die "refusing to remove STATE=$STATE" ;; esac
# Kills only processes of our own cgroup: the daemons first, so that they restart no process, then
# the shims and pods.
for round in 1 2 3 4 5; do
  pids=$(find "$(pids_dir)" -name cgroup.procs -exec cat {} + 2>/dev/null | sort -un || true)
  [ -n "$pids" ] || break
  # shellcheck disable=SC2086
  kill -9 $pids 2>/dev/null || true
  sleep 0.5
done
# Killed shims leave their sockets in containerd's fixed directory.
{ grep -hos '/run/containerd/s/[0-9a-f]*' "$STATE"/run/containerd/io.containerd.runtime.v2.task/*/*/{bootstrap.json,address} || true; } | sort -u | xargs -r rm -f
# libcni's cache and the kubelet's log links have fixed places as well.
for f in /var/lib/cni/results/braid-*-eth0; do
  [ ! -e "$f" ] || { id=${f##*/braid-}; rm -f "$f" "/var/lib/cni/results/cni-loopback-${id%-eth0}-lo"; }
done
pgrep -x kubelet >/dev/null || { rm -f /var/lib/kubelet/device-plugins/kubelet.sock; rmdir /var/lib/kubelet/device-plugins /var/lib/kubelet 2>/dev/null || true; }
[ ! -d /var/log/containers ] || find /var/log/containers -lname "$STATE/*" -delete
[ ! -f "$STATE/conf/sysctl" ] || while read -r k v; do echo "$v" > "/proc/sys/$k" || true; done < "$STATE/conf/sysctl"
awk -v p="$STATE/" 'index($2,p)==1 {print $2}' /proc/mounts | sort -r | while read -r m; do umount -l "$m" || true; done
ip netns list 2>/dev/null | grep -qw "^$NETNS" && ip netns del "$NETNS"
ip link del "$VETH" 2>/dev/null || true
for d in $(cgroup_dirs); do [ ! -d "$d" ] || find "$d" -depth -type d -exec rmdir {} \; 2>/dev/null || true; done
if awk -v p="$STATE/" 'index($2,p)==1 {f=1} END {exit !f}' /proc/mounts; then die "mounts left under $STATE; not removing it"; fi
rm -rf "$STATE"
log "down"

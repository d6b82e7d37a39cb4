# Sourced by the other scripts; every value can be set in the environment.
# shellcheck shell=bash
CACHE=${BRAID_KUBE_CACHE:-$HOME/.cache/braid-kube} # programs; a CI keeps it
# Certificates, etcd's data, containerd's root, logs; down.sh removes it.
STATE=${BRAID_KUBE_STATE:-/tmp/braid-kube}

K8S_VERSION=v1.36.3
ETCD_VERSION=v3.6.16
CNI_VERSION=v1.9.1
COREDNS_VERSION=v1.14.7
METRICS_VERSION=v0.9.0                             # metrics-server, for HorizontalPodAutoscalers
RECIPE=1                                           # raised when the build itself changes

BIN=$CACHE/bin                                     # links to the versions above
CTD_DIR=/usr/bin                                   # Debian's containerd; 1.6 is new enough
export CONTAINERD_SUPPRESS_DEPRECATION_WARNINGS=1
log() { printf 'cluster: %s\n' "$*" >&2; }
die() { log "error: $*"; exit 1; }

# The cluster has its own network namespace, joined to the host by a veth pair. So its rules, bridge
# and ports do not conflict with a Docker engine on the same host. The host reaches nodes, pods and
# services by routes over the veth.
NETNS=braid-kube
VETH=pkube0
HOST_IP=10.210.0.1
NODE_IP=10.210.0.2
SERVICE_CIDR=10.211.0.0/16
KUBE_SVC_IP=10.211.0.1
DNS_IP=10.211.0.10
POD_CIDR=10.212.0.0/24
NODE=braid-node
CGROUP=braid-kube
QUEUE=100                                          # of the kernel, for first packets that wait for the enforcer
VOLUMES=8                                          # the largest number of claims
PAUSE_IMAGE=braid.local/pause:1
COREDNS_IMAGE=braid.local/coredns:$COREDNS_VERSION
METRICS_IMAGE=braid.local/metrics-server:$METRICS_VERSION
SOCK=$STATE/run/containerd.sock

cgroup_dirs() {                                    # this cluster's cgroup in each hierarchy
  if [ -f /sys/fs/cgroup/cgroup.controllers ]; then echo "/sys/fs/cgroup/$CGROUP"; return; fi
  awk '$3=="cgroup" || ($3=="cgroup2" && $2=="/sys/fs/cgroup/unified") {print $2}' /proc/mounts | sort -u | sed "s#\$#/$CGROUP#"
}
pids_dir() {                                       # the hierarchy in which down.sh finds our processes
  if [ -f /sys/fs/cgroup/cgroup.controllers ]; then echo "/sys/fs/cgroup/$CGROUP"; else echo "/sys/fs/cgroup/pids/$CGROUP"; fi
}

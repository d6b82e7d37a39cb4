#!/usr/bin/env bash
# up.sh - a real one-node Kubernetes from the programs of build.sh. Needs root.
#
# It starts etcd, API server, controllers, scheduler, containerd, kubelet, kube-proxy, CoreDNS,
# metrics-server, and an enforcer of NetworkPolicies, and prints KUBECONFIG=FILE. Running programs
# are left alone; down.sh ends them. Everything is in one cgroup and one network namespace.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd); . "$here/settings.sh"
[ "$(id -u)" = 0 ] || die "needs root"
"$here/build.sh" here || die "run build.sh first"
t0=$(date +%s.%N); since() { echo "$(date +%s.%N) $t0" | awk '{printf "%.1f s", $1-$2}'; }
umask 022 # containerd unpacks images with it: a tighter one locks non-root pods out
mkdir -p "$STATE"/{run,log,pki,conf,etcd,pids}
PKI=$STATE/pki; chmod 700 "$PKI" "$STATE/conf" "$STATE/etcd"

# ---- network namespace ---------------------------------------------------------------------------
if ! ip netns list | grep -qw "^$NETNS"; then
  ip netns add "$NETNS"
  ip link add "$VETH" type veth peer name eth0 netns "$NETNS"
  ip addr add "$HOST_IP/24" dev "$VETH"; ip link set "$VETH" up
  ip -n "$NETNS" addr add "$NODE_IP/24" dev eth0
  ip -n "$NETNS" link set lo up; ip -n "$NETNS" link set eth0 up
  ip -n "$NETNS" route add default via "$HOST_IP"
  ip route add "$SERVICE_CIDR" via "$NODE_IP"; ip route add "$POD_CIDR" via "$NODE_IP"
  nsenter --net="/run/netns/$NETNS" sh -c 'echo 1 > /proc/sys/net/ipv4/ip_forward
    for f in iptables ip6tables; do [ ! -e /proc/sys/net/bridge/bridge-nf-call-$f ] || echo 1 > /proc/sys/net/bridge/bridge-nf-call-$f; done'
fi

# ---- cgroups: all processes stay under /$CGROUP, where down.sh finds them -----------------------
for d in $(cgroup_dirs); do
  mkdir -p "$d"
  if [ -f "$d/cpuset.cpus" ] && [ -z "$(cat "$d/cpuset.cpus")" ] && [ ! -f "$d/cgroup.controllers" ]; then
    cat "$(dirname "$d")/cpuset.cpus" > "$d/cpuset.cpus"; cat "$(dirname "$d")/cpuset.mems" > "$d/cpuset.mems"
  fi
done
mkdir -p "$(pids_dir)/daemons"

# ---- certificates --------------------------------------------------------------------------------
ca() { # NAME CN
  [ -f "$PKI/$1.crt" ] || openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj "/CN=$2" \
    -keyout "$PKI/$1.key" -out "$PKI/$1.crt" 2>/dev/null
}
cert() { # NAME CA SUBJECT [SAN]
  [ ! -f "$PKI/$1.crt" ] || return 0
  openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "$3" -keyout "$PKI/$1.key" -out "$PKI/$1.csr" 2>/dev/null
  { echo "keyUsage=critical,digitalSignature"; echo "extendedKeyUsage=serverAuth,clientAuth"; [ -z "${4:-}" ] || echo "subjectAltName=$4"; } > "$PKI/$1.ext"
  openssl x509 -req -in "$PKI/$1.csr" -CA "$PKI/$2.crt" -CAkey "$PKI/$2.key" -CAcreateserial -days 30 -extfile "$PKI/$1.ext" -out "$PKI/$1.crt" 2>/dev/null
  rm "$PKI/$1.csr" "$PKI/$1.ext"
}
kubeconfig() { # NAME
  [ ! -f "$STATE/conf/$1.kubeconfig" ] || return 0
  cat > "$STATE/conf/$1.kubeconfig" <<Y
apiVersion: v1
kind: Config
clusters: [{name: braid, cluster: {server: "https://$NODE_IP:6443", certificate-authority-data: $(base64 -w0 < "$PKI/ca.crt")}}]
users: [{name: $1, user: {client-certificate-data: $(base64 -w0 < "$PKI/$1.crt"), client-key-data: $(base64 -w0 < "$PKI/$1.key")}}]
contexts: [{name: braid, context: {cluster: braid, user: $1}}]
current-context: braid
Y
}
ca ca braid-kube-ca; ca front-ca braid-kube-front-proxy-ca
cert apiserver ca /CN=kube-apiserver "IP:$NODE_IP,IP:127.0.0.1,IP:$KUBE_SVC_IP,DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local"
cert apiserver-kubelet-client ca /O=system:masters/CN=kube-apiserver-kubelet-client
cert front-client front-ca /CN=front-proxy-client
cert admin ca /O=system:masters/CN=admin
cert kube-controller-manager ca /CN=system:kube-controller-manager
cert kube-scheduler ca /CN=system:kube-scheduler
cert kube-proxy ca /CN=system:kube-proxy
cert kubelet ca "/O=system:nodes/CN=system:node:$NODE" "DNS:$NODE,IP:$NODE_IP"
[ -f "$PKI/sa.key" ] || { openssl genrsa -out "$PKI/sa.key" 2048 2>/dev/null; openssl rsa -in "$PKI/sa.key" -pubout -out "$PKI/sa.pub" 2>/dev/null; }
for c in admin kube-controller-manager kube-scheduler kube-proxy kubelet; do kubeconfig $c; done
export KUBECONFIG=$STATE/conf/admin.kubeconfig

# ---- processes -----------------------------------------------------------------------------------
alive() { # PID: runs, is ours, and is not a zombie (not every init reaps)
  grep -qs "/$CGROUP/daemons\$" "/proc/$1/cgroup" && ! grep -qs '^State:[[:space:]]*Z' "/proc/$1/status"
}
start() { # NAME CMD...
  local name=$1 pidf=$STATE/pids/$1; shift
  if [ -f "$pidf" ] && alive "$(cat "$pidf")"; then return 0; fi
  setsid sh -c 'echo $$ > "$0"/daemons/cgroup.procs; echo $$ > "$1"; shift; exec "$@"' "$(pids_dir)" "$pidf" \
    nsenter --net="/run/netns/$NETNS" env PATH="$BIN:$PATH" "$@" </dev/null >>"$STATE/log/$name.log" 2>&1 &
  disown
}
wait_for() { # SECONDS WHAT CMD...
  local end=$(( $(date +%s) + $1 )) what=$2; shift 2
  until "$@" >/dev/null 2>&1; do
    [ "$(date +%s)" -lt "$end" ] || { tail -n 5 "$STATE"/log/*.log >&2; die "timed out waiting for $what"; }
    sleep 0.3
  done
  log "$what ready after $(since)"
}
in_ns() { nsenter --net="/run/netns/$NETNS" "$@"; }
kc() { "$BIN/kubectl" "$@"; }

start etcd "$BIN/etcd" --data-dir "$STATE/etcd" --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
  --listen-peer-urls http://127.0.0.1:2380 --unsafe-no-fsync --log-level warn
start kube-apiserver "$BIN/kube-apiserver" --etcd-servers=http://127.0.0.1:2379 --advertise-address="$NODE_IP" --secure-port=6443 \
  --service-cluster-ip-range="$SERVICE_CIDR" --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction --allow-privileged=true \
  --client-ca-file="$PKI/ca.crt" --tls-cert-file="$PKI/apiserver.crt" --tls-private-key-file="$PKI/apiserver.key" \
  --kubelet-client-certificate="$PKI/apiserver-kubelet-client.crt" --kubelet-client-key="$PKI/apiserver-kubelet-client.key" \
  --kubelet-certificate-authority="$PKI/ca.crt" --kubelet-preferred-address-types=InternalIP \
  --requestheader-client-ca-file="$PKI/front-ca.crt" --requestheader-allowed-names=front-proxy-client --requestheader-username-headers=X-Remote-User \
  --requestheader-group-headers=X-Remote-Group --requestheader-extra-headers-prefix=X-Remote-Extra- \
  --proxy-client-cert-file="$PKI/front-client.crt" --proxy-client-key-file="$PKI/front-client.key" \
  --service-account-issuer=https://kubernetes.default.svc.cluster.local --service-account-key-file="$PKI/sa.pub" --service-account-signing-key-file="$PKI/sa.key" \
  --profiling=false
wait_for 120 kube-apiserver kc get --raw /readyz
start kube-controller-manager "$BIN/kube-controller-manager" --kubeconfig="$STATE/conf/kube-controller-manager.kubeconfig" \
  --authentication-kubeconfig="$STATE/conf/kube-controller-manager.kubeconfig" --authorization-kubeconfig="$STATE/conf/kube-controller-manager.kubeconfig" \
  --bind-address=127.0.0.1 --leader-elect=false --use-service-account-credentials=true --root-ca-file="$PKI/ca.crt" \
  --service-account-private-key-file="$PKI/sa.key" --cluster-signing-cert-file="$PKI/ca.crt" --cluster-signing-key-file="$PKI/ca.key" \
  --service-cluster-ip-range="$SERVICE_CIDR" --flex-volume-plugin-dir="$STATE/conf/flexvolume" --profiling=false
start kube-scheduler "$BIN/kube-scheduler" --kubeconfig="$STATE/conf/kube-scheduler.kubeconfig" \
  --authentication-kubeconfig="$STATE/conf/kube-scheduler.kubeconfig" --authorization-kubeconfig="$STATE/conf/kube-scheduler.kubeconfig" \
  --bind-address=127.0.0.1 --leader-elect=false --profiling=false
wait_for 60 "default service account" kc get serviceaccount default
# Volumes that take the group of their pod, like those of a storage provider. The provisioner in the
# controllers makes folders for root alone.
volumes() {
  echo '{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: standard, annotations: {storageclass.kubernetes.io/is-default-class: "true"}}, provisioner: kubernetes.io/no-provisioner}'
  local n
  for ((n = 0; n < VOLUMES; n++)); do
    mkdir -p "$STATE/volumes/$n"
    cat <<Y
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: volume-$n}
spec:
  capacity: {storage: 16Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: standard
  persistentVolumeReclaimPolicy: Retain
  local: {path: $STATE/volumes/$n}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [$NODE]}]}]}}
Y
  done
}
volumes | kc apply -f - >/dev/null

# ---- container runtime ---------------------------------------------------------------------------
[ -x "$CTD_DIR/containerd" ] || die "containerd is missing: infra/dev/need.sh docker installs it"
RUNC=$(command -v runc) || die "runc is needed (Debian package runc)"
command -v iptables >/dev/null || die "iptables is needed"
# Without CAP_SYS_RESOURCE (some VMs and CI runners) a pod's OOM score cannot be lowered, so
# containerd clamps it.
clamp_oom=true; (echo -998 > /proc/self/oom_score_adj) 2>/dev/null && clamp_oom=false
mkdir -p "$STATE"/{containerd,cni-conf,cni-ipam,opt,kubelet} "$STATE/log/pods"
# containerd 1.x reads version 2, and 2.x migrates it.
cat > "$STATE/conf/containerd.toml" <<T
version = 2
root = "$STATE/containerd"
state = "$STATE/run/containerd"
[grpc]
  address = "$SOCK"
[plugins."io.containerd.internal.v1.opt"]
  path = "$STATE/opt"
[plugins."io.containerd.nri.v1.nri"]
  disable = true
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "$PAUSE_IMAGE"
  netns_mounts_under_state_dir = true
  restrict_oom_score_adj = $clamp_oom
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "$BIN"
    conf_dir = "$STATE/cni-conf"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        BinaryName = "$RUNC"
        SystemdCgroup = false
T
cat > "$STATE/cni-conf/10-braid.conflist" <<J
{"cniVersion":"1.0.0","name":"braid","plugins":[
 {"type":"bridge","bridge":"cni0","isGateway":true,"hairpinMode":true,
  "ipam":{"type":"host-local","dataDir":"$STATE/cni-ipam","ranges":[[{"subnet":"$POD_CIDR"}]],"routes":[{"dst":"0.0.0.0/0"}]}},
 {"type":"portmap","capabilities":{"portMappings":true}}]}
J
# The shim is found through PATH and must be of the same release as the daemon.
start containerd env PATH="$CTD_DIR:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" "$CTD_DIR/containerd" \
  --config "$STATE/conf/containerd.toml" --address "$SOCK"
wait_for 30 containerd "$CTD_DIR/ctr" --address "$SOCK" version
"$here/load-image.sh" --scratch "$PAUSE_IMAGE" "$BIN/pause"
"$here/load-image.sh" --scratch "$COREDNS_IMAGE" "$BIN/coredns"
"$here/load-image.sh" --scratch "$METRICS_IMAGE" "$BIN/metrics-server"

# ---- NetworkPolicies -----------------------------------------------------------------------------
# The first packet of a pod's connection waits for the enforcer's verdict. By then the Service's
# address has become a pod's, and the source is not masked yet. Without an enforcer it is dropped.
# Packets of the node's own daemons pass, since the kubelet's probes must. Two DNS questions of a
# pod at once from one socket would be two first packets of one connection. The kernel may drop one
# of them, and the pod would wait for 5 s. So DNS packets wait before conntrack, where their
# destination is still the Service's address.
rule() { in_ns iptables -w -t "$@" || die "the kernel or iptables lacks what policies are enforced by: $*"; }
if ! in_ns iptables -w -t mangle -S POLICIES >/dev/null 2>&1; then
  rule raw -A PREROUTING -s "$POD_CIDR" -p udp --dport 53 -j NFQUEUE --queue-num "$QUEUE"
  rule mangle -N POLICIES
  rule mangle -A POLICIES -m conntrack --ctstate ESTABLISHED,RELATED -j RETURN
  rule mangle -A POLICIES -p udp --dport 53 -j RETURN
  rule mangle -A POLICIES -s "$POD_CIDR" -j NFQUEUE --queue-num "$QUEUE"
  rule mangle -A POLICIES -d "$POD_CIDR" -j NFQUEUE --queue-num "$QUEUE"
  rule mangle -A INPUT -s "$POD_CIDR" -j POLICIES
  rule mangle -A POSTROUTING -m owner ! --uid-owner 0 -j POLICIES
fi
start enforcer "$BIN/enforcer" --kubeconfig="$STATE/conf/admin.kubeconfig" --node="$NODE" --queue="$QUEUE" -v=2
wait_for 60 enforcer in_ns grep -q "^ *$QUEUE " /proc/net/netfilter/nfnetlink_queue

# ---- kubelet, kube-proxy, CoreDNS, metrics-server ------------------------------------------------
echo "nameserver $HOST_IP" > "$STATE/conf/resolv.conf"
cat > "$STATE/conf/kubelet.yaml" <<Y
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $PKI/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: $PKI/kubelet.crt
tlsPrivateKeyFile: $PKI/kubelet.key
containerRuntimeEndpoint: unix://$SOCK
cgroupDriver: cgroupfs
cgroupRoot: /$CGROUP
failCgroupV1: false
failSwapOn: false
clusterDNS: [$DNS_IP]
clusterDomain: cluster.local
resolvConf: $STATE/conf/resolv.conf
podLogsDir: $STATE/log/pods
volumePluginDir: $STATE/kubelet/volume-plugins
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, nodefs.inodesFree: 1%, imagefs.available: 1%}
Y
# The kubelet sets these for the whole host; down.sh puts them back.
[ -f "$STATE/conf/sysctl" ] || for k in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
  [ ! -r "/proc/sys/$k" ] || echo "$k $(cat "/proc/sys/$k")"
done > "$STATE/conf/sysctl"
start kubelet "$BIN/kubelet" --config="$STATE/conf/kubelet.yaml" --kubeconfig="$STATE/conf/kubelet.kubeconfig" --hostname-override="$NODE" \
  --node-ip="$NODE_IP" --root-dir="$STATE/kubelet"
cat > "$STATE/conf/kube-proxy.yaml" <<Y
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
clientConnection: {kubeconfig: $STATE/conf/kube-proxy.kubeconfig}
clusterCIDR: $POD_CIDR
hostnameOverride: $NODE
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
Y
start kube-proxy "$BIN/kube-proxy" --config="$STATE/conf/kube-proxy.yaml"
kc apply -f - >/dev/null <<Y
apiVersion: v1
kind: ServiceAccount
metadata: {name: coredns, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: system:coredns}
rules:
- {apiGroups: [""], resources: [endpoints, services, pods, namespaces], verbs: [list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: system:coredns}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: system:coredns}
subjects: [{kind: ServiceAccount, name: coredns, namespace: kube-system}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: coredns, namespace: kube-system}
data:
  Corefile: |
    .:53 {
      errors
      health
      ready
      kubernetes cluster.local in-addr.arpa ip6.arpa
      cache 5
    }
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: coredns, namespace: kube-system, labels: {k8s-app: kube-dns}}
spec:
  selector: {matchLabels: {k8s-app: kube-dns}}
  template:
    metadata: {labels: {k8s-app: kube-dns}}
    spec:
      serviceAccountName: coredns
      dnsPolicy: Default
      containers:
      - name: coredns
        image: $COREDNS_IMAGE
        imagePullPolicy: Never
        args: [-conf, /etc/coredns/Corefile]
        readinessProbe: {httpGet: {path: /ready, port: 8181}, periodSeconds: 1}
        volumeMounts: [{name: config, mountPath: /etc/coredns}]
      volumes: [{name: config, configMap: {name: coredns}}]
---
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system, labels: {k8s-app: kube-dns}}
spec:
  clusterIP: $DNS_IP
  selector: {k8s-app: kube-dns}
  ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: metrics-server, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: system:metrics-server}
rules:
- {apiGroups: [""], resources: [nodes/metrics], verbs: [get]}
- {apiGroups: [""], resources: [pods, nodes], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: system:metrics-server}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: system:metrics-server}
subjects: [{kind: ServiceAccount, name: metrics-server, namespace: kube-system}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: metrics-server:system:auth-delegator}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: system:auth-delegator}
subjects: [{kind: ServiceAccount, name: metrics-server, namespace: kube-system}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: metrics-server-auth-reader, namespace: kube-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: extension-apiserver-authentication-reader}
subjects: [{kind: ServiceAccount, name: metrics-server, namespace: kube-system}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: metrics-server, namespace: kube-system}
spec:
  selector: {matchLabels: {k8s-app: metrics-server}}
  template:
    metadata: {labels: {k8s-app: metrics-server}}
    spec:
      serviceAccountName: metrics-server
      containers:
      - name: metrics-server
        image: $METRICS_IMAGE
        imagePullPolicy: Never
        readinessProbe: {httpGet: {path: /readyz, port: 10250, scheme: HTTPS}, periodSeconds: 1}
        args: [--secure-port=10250, --cert-dir=/tmp, --metric-resolution=10s, --kubelet-request-timeout=5s, --kubelet-preferred-address-types=InternalIP,
               --kubelet-certificate-authority=/var/run/secrets/kubernetes.io/serviceaccount/ca.crt]
        volumeMounts: [{name: tmp, mountPath: /tmp}]
      volumes: [{name: tmp, emptyDir: {}}]
---
apiVersion: v1
kind: Service
metadata: {name: metrics-server, namespace: kube-system}
spec: {selector: {k8s-app: metrics-server}, ports: [{port: 443, targetPort: 10250}]}
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.metrics.k8s.io}
spec:
  group: metrics.k8s.io
  version: v1beta1
  groupPriorityMinimum: 100
  versionPriority: 100
  insecureSkipTLSVerify: true
  service: {name: metrics-server, namespace: kube-system}
Y
wait_for 120 node kc wait --for=condition=Ready "node/$NODE" --timeout=1s
wait_for 120 CoreDNS kc -n kube-system rollout status deployment/coredns --timeout=1s
# An announced API without a server fails clients that list all APIs, such as helm.
wait_for 120 metrics-server kc wait --for=condition=Available apiservice/v1beta1.metrics.k8s.io --timeout=1s
log "cluster up after $(since)"
echo "KUBECONFIG=$KUBECONFIG"

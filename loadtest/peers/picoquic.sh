#!/usr/bin/env bash
# picoquic.sh PEER - a client on picoquic, another implementation of multipath QUIC, sends 100 MB
# through Braid's proxy over two paths. They are echoed at the same time.
#
# PEER is the program of picoquic_connect.c, linked with picoquic. Needs root: client, router and
# proxy run in network namespaces of this script, with two access networks of 50 and 30 Mbit/s.
# BYTES=100000000, RATES="50 30" and BRAID (the program braid) can be set.
#
# Passes if every byte comes back equal, and each path carries at least a tenth, both ways. The rate
# is printed: the client's scheduler decides it as well.
set -euo pipefail

peer=$(readlink -f "${1:?usage: picoquic.sh PEER}")
top=$(cd "$(dirname "$0")/../.." && pwd)
braid=${BRAID:-$top/target/debug/braid}
bytes=${BYTES:-100000000}
read -r first second <<< "${RATES:-50 30}"
die() { echo "picoquic.sh: $*" >&2; exit 1; }

[ "$(id -u)" = 0 ] || die "namespaces need root"
[ -x "$peer" ] || die "$peer is no program"
[ -x "$braid" ] || die "$braid is missing: cargo build -p braid"
for tool in ip tc python3; do command -v "$tool" > /dev/null || die "$tool is missing: infra/dev/need.sh ip"; done

dir=$(mktemp -d)
gw=peer-gw-$$ rt=peer-rt-$$ px=peer-px-$$
started=()
end() {
  for process in "${started[@]}"; do kill "$process" 2> /dev/null || true; done
  for side in "$gw" "$rt" "$px"; do ip netns del "$side" 2> /dev/null || true; done
  rm -rf "$dir"
}
trap end EXIT

for side in "$gw" "$rt" "$px"; do
  ip netns add "$side"
  ip -n "$side" link set lo up
done
plug() { # SIDE DEVICE NET RATE: a network between the side and the router, shaped at both ends
  ip -n "$1" link add "$2" type veth peer name "m-$2" netns "$rt"
  ip -n "$rt" addr add "10.$3.0.1/24" dev "m-$2"
  ip -n "$1" addr add "10.$3.0.2/24" dev "$2"
  ip -n "$rt" link set "m-$2" up
  ip -n "$1" link set "$2" up
  ip -n "$1" route add default via "10.$3.0.1" dev "$2" metric "$3"
  [ -z "$4" ] || for at in "$1 $2" "$rt m-$2"; do
    read -r side device <<< "$at"
    tc -n "$side" qdisc add dev "$device" root tbf rate "$4mbit" burst 32k latency 50ms
  done
}
plug "$gw" wlan0 1 "$first"
plug "$gw" wwan0 2 "$second"
plug "$px" core0 9 ""
ip netns exec "$rt" sh -c 'echo 1 > /proc/sys/net/ipv4/ip_forward'

"$braid" identity issue service proxy --data "$dir" > /dev/null
"$braid" identity issue gateway gw-1 --data "$dir" > /dev/null
files=$dir/identities

ip netns exec "$px" python3 - > "$dir/echo.log" 2>&1 <<'ECHO' &
import socket, threading
listener = socket.create_server(("10.9.0.2", 9000))
def echo(stream):
    with stream:
        while data := stream.recv(1 << 16):
            stream.sendall(data)
while True:
    threading.Thread(target=echo, args=(listener.accept()[0],), daemon=True).start()
ECHO
started+=($!)
ip netns exec "$px" "$braid" proxy --listen 10.9.0.2:4433 --admin 127.0.0.1:9090 --path-telemetry "" \
  --cert "$files/proxy.pem" --key "$files/proxy.key" --ca "$files/ca.pem" \
  --allow 10.9.0.2:9000 > "$dir/proxy.log" 2>&1 &
started+=($!)
listens=
for _ in $(seq 100); do
  ! ip netns exec "$px" python3 -c 'import socket; [socket.create_connection(("10.9.0.2", port), 1) for port in (4433, 9000)]' 2> /dev/null || { listens=1; break; }
  sleep 0.1
done
[ -n "$listens" ] || { tail -n 5 "$dir/proxy.log" "$dir/echo.log" >&2; die "the proxy does not listen"; }

carried() { # SIDE DEVICE DIRECTION: bytes so far
  ip netns exec "$1" cat "/sys/class/net/$2/statistics/$3_bytes"
}
index=$(ip netns exec "$gw" cat /sys/class/net/wwan0/ifindex)
failed=0
began=$(date +%s%N)
ip netns exec "$gw" timeout 300 "$peer" 10.9.0.2 4433 proxy "$files/gw-1.pem" "$files/gw-1.key" "$files/ca.pem" \
  10.9.0.2:9000 "$bytes" "10.2.0.2/$index" || failed=1
took_ms=$((($(date +%s%N) - began) / 1000000))
[ $failed = 0 ] || { tail -n 5 "$dir/proxy.log" >&2; die "the exchange failed"; }

for direction in tx rx; do
  for device in wlan0 wwan0; do
    share=$(carried "$gw" "$device" "$direction")
    echo "$device $direction: $share bytes"
    [ $((share * 10)) -ge "$bytes" ] || { echo "FAILED: $device carried less than a tenth ($direction)"; failed=1; }
  done
done
echo "$((bytes * 8 / took_ms / 1000)) Mbit/s each way, over $first and $second Mbit/s"
exit $failed

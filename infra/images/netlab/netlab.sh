#!/bin/bash
# netlab - the router of an emulated access network: it shapes the traffic of gateways to the core.
#
#   netlab run           become the network's router and shape it, until ended
#   netlab cut|restore   drop all packets, or none; without notice to any end
#   netlab show          rates, sent and dropped packets, and whether it is cut
#   netlab health        succeeds when the rules are set and the core answers
#   netlab walk          cut for NETLAB_CUT_S seconds, restore for NETLAB_WAY_S, without end
#
# NETLAB_ACCESS, NETLAB_CORE: the networks (address/prefix) on both sides.
# NETLAB_WAY_OUT: the gateways' address of this router.
# NETLAB_MBIT_PER_S, NETLAB_QUEUE_MS: rate and queue of each direction.
# NETLAB_LOSS_PERMILLE: random loss of each direction.
# NETLAB_DELAY_MS: delay of each direction, if the kernel has netem; otherwise a message says so.
set -euo pipefail

say() { printf 'netlab: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# The device with an address of a network, whatever its name.
device_of() { # NETWORK
  ip -o -4 route show "$1" scope link | sed -n 's/.* dev \([^ ]*\).*/\1/p' | head -1
}

shape() { # DEVICE
  local rate=${NETLAB_MBIT_PER_S:-20} queue=${NETLAB_QUEUE_MS:-60} delay=${NETLAB_DELAY_MS:-0}
  tc qdisc replace dev "$1" root handle 1: tbf rate "${rate}mbit" burst 32kb latency "${queue}ms"
  if [ "$delay" != 0 ] && ! tc qdisc replace dev "$1" parent 1:1 handle 10: netem delay "${delay}ms" limit 10000 2> /dev/null; then
    say "this kernel has no netem: $1 is shaped without its delay of $delay ms"
  fi
}

run() {
  local access core
  access=$(device_of "$NETLAB_ACCESS"); core=$(device_of "$NETLAB_CORE")
  [ -n "$access" ] && [ -n "$core" ] || die "no device in $NETLAB_ACCESS or in $NETLAB_CORE"
  # Gateways have this address as their default route. Those with a default route in another network
  # ask this network for the core, and get this address (proxy_arp is set for the container).
  ip address replace "$NETLAB_WAY_OUT/${NETLAB_ACCESS#*/}" dev "$access"
  nft -f - <<RULES
add table ip netlab
flush table ip netlab
table ip netlab {
  chain forward {
    type filter hook forward priority filter; policy accept;
    numgen random mod 1000 < ${NETLAB_LOSS_PERMILLE:-0} counter drop
  }
  chain out {
    type nat hook postrouting priority srcnat;
    oifname "$core" masquerade
  }
}
RULES
  shape "$access"; shape "$core"
  say "$NETLAB_ACCESS ($access) to $NETLAB_CORE ($core): ${NETLAB_MBIT_PER_S:-20} Mbit/s, loss ${NETLAB_LOSS_PERMILLE:-0} in a thousand"
  trap 'exit 0' TERM INT
  sleep infinity & wait $!
}

is_cut() { nft list table ip netlab_cut > /dev/null 2>&1; }

cut() {
  nft add table ip netlab_cut
  nft 'add chain ip netlab_cut forward { type filter hook forward priority -10; policy drop; }'
}

restore() { ! is_cut || nft delete table ip netlab_cut; }

health() {
  local core; core=$(device_of "$NETLAB_CORE")
  tc qdisc show dev "$core" | grep -q tbf && nft list table ip netlab | grep -q masquerade
}

case ${1:-} in
  run) run ;;
  cut) cut ;;
  restore) restore ;;
  health) health ;;
  show)
    is_cut && echo cut || echo open
    for network in "$NETLAB_ACCESS" "$NETLAB_CORE"; do tc -s qdisc show dev "$(device_of "$network")"; done ;;
  walk)
    while sleep "${NETLAB_WAY_S:-50}"; do cut; say cut; sleep "${NETLAB_CUT_S:-10}"; restore; say restored; done ;;
  *) sed -n '2,14s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac

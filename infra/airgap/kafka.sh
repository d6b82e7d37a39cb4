#!/usr/bin/env bash
# kafka.sh - a real Apache Kafka (KRaft) without a container registry: the project's own jars, run
# by this machine's Java.
#
#   kafka.sh fetch                  jars below $BRAID_CACHE by Maven, once
#   kafka.sh here                   succeeds when jars and Java are here
#   kafka.sh prepare N PORT DIR     folders DIR/node1..N of a cluster; node n listens on
#                                   127.0.0.1:(PORT+n-1)
#   kafka.sh node DIR n             node n in the foreground; ends with its parent
#   kafka.sh start N PORT DIR       all nodes in the background; returns once they are ready
#   kafka.sh stop DIR               a regular end of the nodes of `start`
#   kafka.sh tool CLASS [ARG...]    a command-line tool, for example: tool topics --list ...
#
# A node is broker and controller at once; the controllers listen 1000 ports higher. Data stays in
# DIR; delete it to begin anew.
# BRAID_KAFKA_EXTRA: lines for every server.properties, which override those of `prepare`.
# BRAID_KAFKA_HEAP: memory of a node, default 256m.
# BRAID_KAFKA_JVM: flags of its Java; by default those of a small node with a quick start.
set -euo pipefail

version=4.1.0
cache=${BRAID_CACHE:-$HOME/.cache/braid}
home=$cache/kafka-$version
jvm=${BRAID_KAFKA_JVM--XX:+UseSerialGC -XX:TieredStopAtLevel=1}

say() { printf 'kafka: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }
open_port() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# Flags of every Java here: the jars, and a log on standard error.
java_flags() { printf '%s\n' -Dlog4j2.configurationFile="$home/log4j2.properties" -cp "$home/jars/*"; }

fetch() {
  [ ! -e "$home/.complete" ] || return 0
  for tool in java mvn; do
    command -v "$tool" >/dev/null || die "$tool is missing: infra/dev/need.sh kafka installs it"
  done
  mkdir -p "$cache"
  exec 8> "$home.lock"; flock 8
  [ ! -e "$home/.complete" ] || return 0
  say "Kafka $version into $home (about 140 MB, once)"
  rm -rf "$home"; mkdir -p "$home/jars"
  # The binding of SLF4J to Log4j belongs to Kafka's distribution, yet no jar of Kafka's depends on
  # it.
  cat > "$home/pom.xml" <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>braid</groupId><artifactId>kafka</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>$version</version></dependency>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>$version</version></dependency>
    <dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId><version>2.24.3</version></dependency>
  </dependencies>
</project>
POM
  mvn -q -B -f "$home/pom.xml" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$home/jars" > "$home/mvn.log" 2>&1 ||
    { tail -20 "$home/mvn.log" >&2; die "Maven could not bring Kafka $version"; }
  cat > "$home/log4j2.properties" <<'LOG'
status = error
appender.err.type = Console
appender.err.name = err
appender.err.target = SYSTEM_ERR
appender.err.layout.type = PatternLayout
appender.err.layout.pattern = %d{ISO8601} %p %m (%c{1})%n
rootLogger.level = ${sys:braid.level:-INFO}
rootLogger.appenderRef.err.ref = err
LOG
  rehearse
  touch "$home/.complete"
}

# One start and stop records the classes that a node loads; with the archive a start takes half the
# time. Another Java ignores the archive.
rehearse() {
  local dir=$home/rehearsal port=$((20000 + RANDOM % 8000))
  rm -rf "$dir"; prepare 1 "$port" "$dir" -XX:ArchiveClassesAtExit="$home/format.jsa"
  archive=-XX:ArchiveClassesAtExit=$home/node.jsa in_background "$dir" 1
  if ! (await "$dir" 1 "$port"); then stop "$dir"; exit 1; fi
  stop "$dir"; rm -rf "$dir"
}

properties() { # N PORT DIR NODE
  local n=$1 base=$2 node=$4 voters="" copies i
  local port=$((base + node - 1))
  for ((i = 1; i <= n; i++)); do voters+="${voters:+,}$i@127.0.0.1:$((base + i - 1 + 1000))"; done
  copies=$((n < 3 ? n : 3))
  cat <<PROPERTIES
process.roles=broker,controller
node.id=$node
controller.quorum.voters=$voters
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$((port + 1000))
advertised.listeners=PLAINTEXT://127.0.0.1:$port
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
log.dirs=$3/node$node/data
# Braid creates its topics itself.
auto.create.topics.enable=false
default.replication.factor=$copies
min.insync.replicas=$((copies > 1 ? 2 : 1))
offsets.topic.num.partitions=4
offsets.topic.replication.factor=$copies
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=$copies
transaction.state.log.min.isr=$((copies > 1 ? 2 : 1))
share.coordinator.state.topic.replication.factor=$copies
share.coordinator.state.topic.min.isr=$((copies > 1 ? 2 : 1))
group.initial.rebalance.delay.ms=0
log.cleaner.dedupe.buffer.size=4194304
${BRAID_KAFKA_EXTRA:-}
PROPERTIES
}

prepare() { # N PORT DIR [FLAG of Java]
  local n=$1 base=$2 dir i id flag=${4:--XX:SharedArchiveFile=$home/format.jsa} pids=()
  mkdir -p "$3"; dir=$(cd "$3" && pwd)
  # 16 bytes in base64; Kafka's tools would take a dash in front for a flag.
  [ -s "$dir/cluster-id" ] || head -c 16 /dev/urandom | base64 | tr '+/' '-_' | tr -d '=' | sed 's/^-/A/' > "$dir/cluster-id"
  id=$(cat "$dir/cluster-id")
  mapfile -t flags < <(java_flags)
  for ((i = 1; i <= n; i++)); do
    mkdir -p "$dir/node$i"
    properties "$n" "$base" "$dir" "$i" > "$dir/node$i/server.properties"
    [ ! -e "$dir/node$i/data/meta.properties" ] || continue
    java $jvm "$flag" -Dbraid.level=WARN "${flags[@]}" kafka.tools.StorageTool format -t "$id" \
      -c "$dir/node$i/server.properties" > "$dir/node$i/format.log" 2>&1 &
    pids+=($!)
  done
  for i in "${pids[@]}"; do wait "$i" || { cat "$dir"/node*/format.log >&2; die "cannot format the data folders in $dir"; }; done
}

run_node() { # DIR NODE [PREFIX...]
  local dir=$1 node=$2; shift 2
  mapfile -t flags < <(java_flags)
  # shellcheck disable=SC2086  # a list of words
  exec "$@" java -Xms64m "-Xmx${BRAID_KAFKA_HEAP:-256m}" "${archive:--XX:SharedArchiveFile=$home/node.jsa}" $jvm \
    -Djava.awt.headless=true "${flags[@]}" kafka.Kafka "$dir/node$node/server.properties"
}

in_background() { # DIR NODE
  # Without the lock of `fetch`, which a node would hold as long as it lives.
  run_node "$1" "$2" setsid > "$1/node$2/server.log" 2>&1 < /dev/null 8>&- &
  echo $! > "$1/node$2/pid"
}

# A node opens its port once the cluster has admitted it, so an open port means ready.
await() { # DIR NODE PORT
  local i
  for ((i = 0; i < 600; i++)); do
    if open_port "$3"; then return 0; fi
    kill -0 "$(cat "$1/node$2/pid")" 2>/dev/null || break
    sleep 0.1
  done
  tail -30 "$1/node$2/server.log" >&2
  die "node $2 did not come up; $1/node$2/server.log says why"
}

start() { # N PORT DIR
  local i dir
  fetch; prepare "$1" "$2" "$3"; dir=$(cd "$3" && pwd)
  for ((i = 1; i <= $1; i++)); do in_background "$dir" "$i"; done
  for ((i = 1; i <= $1; i++)); do await "$dir" "$i" $(($2 + i - 1)); done
  say "Kafka $version, $1 node(s): kafka://127.0.0.1:$2"
}

stop() { # DIR
  local file pids=() pid i
  for file in "$1"/node*/pid; do
    [ ! -s "$file" ] || pids+=("$(cat "$file")")
    rm -f "$file"
  done
  for pid in "${pids[@]}"; do kill -TERM "$pid" 2>/dev/null || true; done
  for pid in "${pids[@]}"; do
    for ((i = 0; i < 200; i++)); do kill -0 "$pid" 2>/dev/null || continue 2; sleep 0.1; done
    kill -KILL "$pid" 2>/dev/null || true
  done
}

tool() {
  local class=$1; shift
  case $class in
    topics)        class=org.apache.kafka.tools.TopicCommand ;;
    configs)       class=kafka.admin.ConfigCommand ;;
    groups)        class=org.apache.kafka.tools.consumer.group.ConsumerGroupCommand ;;
    producer)      class=org.apache.kafka.tools.ConsoleProducer ;;
    consumer)      class=org.apache.kafka.tools.consumer.ConsoleConsumer ;;
    producer-perf) class=org.apache.kafka.tools.ProducerPerformance ;;
    quorum)        class=org.apache.kafka.tools.MetadataQuorumCommand ;;
  esac
  mapfile -t flags < <(java_flags)
  exec java -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dbraid.level=WARN "${flags[@]}" "$class" "$@"
}

case ${1:-}/$# in
  fetch/1)   fetch ;;
  here/1)    [ -e "$home/.complete" ] && command -v java >/dev/null ;;
  prepare/4) fetch; prepare "$2" "$3" "$4" ;;
  node/3)    fetch; run_node "$2" "$3" setpriv --pdeathsig KILL ;;
  start/4)   start "$2" "$3" "$4" ;;
  stop/2)    stop "$2" ;;
  tool/*)    [ $# -ge 2 ] || die "tool CLASS [ARG...]"; fetch; shift; tool "$@" ;;
  *)         sed -n '2,18p' "$0" >&2; exit 2 ;;
esac

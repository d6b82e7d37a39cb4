#!/bin/bash
# Formats a new data folder and runs the node of /mnt/shared/config/server.properties, like
# upstream's image.
set -euo pipefail
cluster=${CLUSTER_ID:-5L6g3nShT-eMCtK--X86sw}
flags=(-Djava.awt.headless=true -Dlog4j2.configurationFile=/opt/kafka/log4j2.properties -cp '/opt/kafka/libs/*')
small=(-XX:+UseSerialGC -XX:TieredStopAtLevel=1)
archive=/opt/kafka/archive

node() { # PROPERTIES ARCHIVE-FLAG
  java "${small[@]}" "$2=$archive/format.jsa" -Dbraid.level=WARN "${flags[@]}" kafka.tools.StorageTool format \
    --ignore-formatted -t "$cluster" -c "$1"
  # shellcheck disable=SC2086  # a list of words
  exec java ${KAFKA_HEAP_OPTS:--Xms256m -Xmx256m} "${small[@]}" "$2=$archive/node.jsa" "${flags[@]}" kafka.Kafka "$1"
}

if [ "${1:-}" = rehearse ]; then
  cat > /tmp/server.properties <<'PROPERTIES'
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@localhost:9093
listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs=/tmp/rehearsal
PROPERTIES
  node /tmp/server.properties -XX:ArchiveClassesAtExit > /tmp/log 2>&1 & pid=$!
  until (exec 3<> /dev/tcp/127.0.0.1/9092) 2> /dev/null; do kill -0 $pid || { cat /tmp/log; exit 1; }; sleep 0.2; done
  kill $pid; wait $pid || true
  rm -rf /tmp/rehearsal /tmp/server.properties /tmp/log
  exit
fi
node /mnt/shared/config/server.properties -XX:SharedArchiveFile

#!/bin/bash
# Runs the command-line tool of Kafka under whose name this script is called.
set -euo pipefail
case $(basename "$0" .sh) in
  kafka-topics)          class=org.apache.kafka.tools.TopicCommand ;;
  kafka-configs)         class=org.apache.kafka.tools.ConfigCommand ;;
  kafka-consumer-groups) class=org.apache.kafka.tools.consumer.group.ConsumerGroupCommand ;;
  kafka-get-offsets)     class=org.apache.kafka.tools.GetOffsetShell ;;
  kafka-metadata-quorum) class=org.apache.kafka.tools.MetadataQuorumCommand ;;
esac
exec java -Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dlog4j2.configurationFile=/opt/kafka/log4j2.properties -Dbraid.level=WARN \
  -cp '/opt/kafka/libs/*' "$class" "$@"

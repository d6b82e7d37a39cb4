#!/usr/bin/env bash
# engine.sh - a hospital's interface engine by HAPI, which many of them use (Hospital.java).
#
#   engine.sh fetch                          HAPI below $BRAID_CACHE by Maven, and the engine, once
#   engine.sh here                           succeeds when both are here
#   engine.sh send HOST PORT CERT KEY CA     sends the messages of standard input
#   engine.sh receive PORT CERT KEY CA       acknowledges and prints observations
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
version=2.6.0
home=${BRAID_CACHE:-$HOME/.cache/braid}/hapi-$version
stamp=$(cksum < "$here/Hospital.java" | cut -d' ' -f1)
built=$home/engine-$stamp

fetch() {
  [ -d "$built" ] && return
  mkdir -p "$home/jars"
  cat > "$home/pom.xml" <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>org.example</groupId><artifactId>hapi</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>ca.uhn.hapi</groupId><artifactId>hapi-structures-v251</artifactId><version>$version</version></dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>2.0.17</version></dependency>
  </dependencies>
</project>
POM
  mvn -q -B -f "$home/pom.xml" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$home/jars" > "$home/mvn.log" 2>&1 ||
    { tail -20 "$home/mvn.log" >&2; exit 1; }
  rm -rf "$built.new"
  javac -d "$built.new" -cp "$home/jars/*" "$here/Hospital.java"
  mv "$built.new" "$built"
}

case ${1:-} in
  fetch) fetch ;;
  here) [ -d "$built" ] && command -v java >/dev/null ;;
  send | receive) exec java -cp "$home/jars/*:$built" Hospital "$@" ;;
  *) sed -n '2,7p' "$0" | sed 's/^# \{0,1\}//' >&2; exit 64 ;;
esac

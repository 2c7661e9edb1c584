#!/bin/bash
# Reads the settings of the official image that deploy/compose.yaml uses.
set -eu
{
  echo "dataDir=/data"
  echo "dataLogDir=/datalog"
  echo "tickTime=${ZOO_TICK_TIME:-2000}"
  echo "initLimit=${ZOO_INIT_LIMIT:-5}"
  echo "syncLimit=${ZOO_SYNC_LIMIT:-2}"
  echo "maxClientCnxns=${ZOO_MAX_CLIENT_CNXNS:-60}"
  echo "autopurge.snapRetainCount=${ZOO_AUTOPURGE_SNAPRETAINCOUNT:-3}"
  echo "autopurge.purgeInterval=${ZOO_AUTOPURGE_PURGEINTERVAL:-0}"
  echo "standaloneEnabled=${ZOO_STANDALONE_ENABLED:-true}"
  echo "admin.enableServer=false"
  for setting in ${ZOO_CFG_EXTRA:-}; do echo "$setting"; done
  for server in ${ZOO_SERVERS:-}; do echo "$server"; done
  [ -n "${ZOO_SERVERS:-}" ] || echo "clientPort=2181"
} >/conf/zoo.cfg
[ -f /data/myid ] || echo "${ZOO_MY_ID:-1}" >/data/myid
# shellcheck disable=SC2086
exec /opt/java/bin/java ${JVMFLAGS:-} -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData \
  -cp "/opt/zookeeper/*:/opt/zookeeper/conf" org.apache.zookeeper.server.quorum.QuorumPeerMain /conf/zoo.cfg

#!/usr/bin/env bash
# A Docker engine for the container tests.
#   engine.sh start   finds one that answers, or installs Debian's docker.io and starts one of its own (root); prints DOCKER_HOST
#   engine.sh stop    ends the one it started, with everything in it; leaves any other alone
# Its socket and data are private, it publishes on the loopback only, and it touches neither the firewall nor forwarding: the
# containers reach each other and this machine, nothing else.
set -euo pipefail
data=${FLEETLOG_ENGINE_DATA:-/var/lib/fleetlog-engine}
run=/run/fleetlog-engine
own=unix://$run/docker.sock

answers() { DOCKER_HOST=$1 timeout 20 docker version >/dev/null 2>&1; }
say() { printf 'engine: %s\n' "$*" >&2; }

install() {
  command -v dockerd >/dev/null && command -v docker >/dev/null && return
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    say "no Docker engine answers, and none can be installed here (it takes root and apt-get)"
    exit 1
  fi
  say "installing docker.io"
  apt-get update -qq >&2
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends docker.io iptables >/dev/null
}

start() {
  local host
  for host in ${DOCKER_HOST:+"$DOCKER_HOST"} "$own" unix:///var/run/docker.sock; do
    if command -v docker >/dev/null && answers "$host"; then echo "$host"; return; fi
  done
  install
  if answers unix:///var/run/docker.sock; then echo unix:///var/run/docker.sock; return; fi # the package started it
  if [ "$(id -u)" != 0 ]; then say "starting an engine takes root"; exit 1; fi
  mkdir -p "$data" "$run"
  rm -f "$run/docker.pid"
  ( # it outlives its caller: a lock of the caller's that it inherited would never be free again
    for descriptor in /proc/self/fd/*; do
      descriptor=${descriptor##*/}
      if [ "$descriptor" -gt 2 ]; then eval "exec $descriptor>&-"; fi
    done
    exec setsid nohup dockerd -H "$own" --data-root "$data" --exec-root "$run/exec" --pidfile "$run/docker.pid" \
      --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false --bridge=none --ip 127.0.0.1 \
      --default-address-pool base=10.231.0.0/16,size=24
  ) >"$data/dockerd.log" 2>&1 </dev/null &
  for _ in $(seq 150); do
    if answers "$own"; then echo "$own"; return; fi
    sleep 0.2
  done
  say "dockerd does not answer; the end of $data/dockerd.log:"
  tail -n 20 "$data/dockerd.log" >&2
  exit 1
}

stop() {
  if answers "$own"; then
    DOCKER_HOST=$own docker ps -aq | DOCKER_HOST=$own xargs -r docker rm -f -v >/dev/null
    DOCKER_HOST=$own docker network prune -f >/dev/null # their bridges would outlive the engine
  fi
  if [ -s "$run/docker.pid" ]; then
    local pid
    pid=$(cat "$run/docker.pid")
    if [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = dockerd ]; then
      kill "$pid"
      for _ in $(seq 100); do [ -d "/proc/$pid" ] || break; sleep 0.1; done
    fi
  fi
  while mountpoint -q "$data"; do umount "$data"; done # an engine that was killed leaves its directory bound to itself
  rm -rf "$data" "$run"
}

case "${1:-}" in
  start | stop) "$1" ;;
  *) sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac

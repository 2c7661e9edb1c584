#!/usr/bin/env bash
# README's commands on a bare Debian: what README says must be installed, and nothing else. As root; needs debootstrap.
#   tests/bare_debian.sh [COMMIT]              make quickstart, then make test: over an hour on two cores
#   tests/bare_debian.sh --part WORD [COMMIT]  the set-up, and a few files of tests that the word draws
#   tests/bare_debian.sh --again COMMAND       a command in the system that the last call made
# The clone is of COMMIT (HEAD). The system is made anew in build/bare.
set -euo pipefail
cd "$(dirname "$0")/.."
# In namespaces of its own: whatever still runs or is mounted when this script ends, ends with it.
[ "${BARE_INSIDE:-}" = 1 ] || BARE_INSIDE=1 exec unshare --mount --pid --fork --kill-child "$0" "$@"

part='' again=''
case "${1:-}" in
  --part) part=${2:?a word to draw by}; shift 2 ;;
  --again) again=${2:?a command}; shift 2 ;;
esac
system=$PWD/build/bare

make_system() {
  mkdir -p build
  rm -rf --one-file-system "$system"
  if ! debootstrap --variant=minbase --include=ca-certificates "${SUITE:-bookworm}" "$system" >build/bare.log 2>&1; then
    tail -n 20 build/bare.log
    exit 1
  fi
  git clone -q --no-hardlinks . "$system/src/fleetlog"
  git -C "$system/src/fleetlog" checkout -q "$1"
  rm -f "$system/etc/resolv.conf" "$system/etc/hosts"
  echo "127.0.0.1 localhost $(hostname)" >"$system/etc/hosts"
  # This machine's way to the package indexes.
  local file
  for file in /etc/resolv.conf /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
    [ ! -f "$file" ] || cat "$file" >"$system$file"
  done
}

inside() { # a user's shell: of this one's environment only the way to the package indexes; CI is not set
  local names name index=()
  names='^(PIP_(INDEX_URL|EXTRA_INDEX_URL|CERT|DEFAULT_TIMEOUT|TRUSTED_HOST)|(HTTPS?|NO)_PROXY|SSL_CERT_FILE|REQUESTS_CA_BUNDLE)$'
  for name in $(compgen -e | grep -iE "$names"); do
    index+=("$name=${!name}")
  done
  chroot "$system" env -i HOME=/root USER=root TERM=dumb LANG=C.UTF-8 "${index[@]}" \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin bash -ec "cd /src/fleetlog; $1"
}

[ -n "$again" ] || make_system "$(git rev-parse "${1:-HEAD}")"
mount -t proc proc "$system/proc"
mount -t sysfs sysfs "$system/sys"
mount --rbind /dev "$system/dev"
mount --make-rslave "$system/dev"
mount -t tmpfs tmpfs "$system/dev/shm"
if [ -n "$again" ]; then
  inside "$again"
  exit
fi

# shellcheck disable=SC2016 # the backquotes are README's
packages=$(sed -n 's/^`apt install \([^`]*\)`.*/\1/p' README.md)
[ -n "$packages" ] || { echo "README.md does not say what to install"; exit 1; }
inside "apt-get -qq update; DEBIAN_FRONTEND=noninteractive apt-get -qq -y install --no-install-recommends $packages >/dev/null"
inside "make setup"
if [ -z "$part" ]; then
  inside "make quickstart"
  inside "make test"
else
  files=$(inside "git ls-files 'tests/*/test_*.py' | grep -vE '^tests/(kafka_jars|containers|spark|chaos)/'")
  files=$(grep -vxFf <(awk -F '\t' '$2 > 40 { print $1 }' tests/seconds.tsv) <<<"$files" | sort -R --random-source=<(yes "$part"))
  packing=tests/spark/test_packing.py
  # shellcheck disable=SC2086 # names without blanks
  inside "make test PYTEST_ARGS='$(echo $(head -n 12 <<<"$files")) $packing::test_it_runs_wherever_it_is_unpacked $packing::test_packages_are_where_debians_python_looks_for_them'"
fi

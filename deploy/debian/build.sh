#!/usr/bin/env bash
# Builds a Debian package: deploy/debian/build.sh [--out DIRECTORY] [--wheels DIRECTORY]
#   --out     where the package goes (dist); its path is printed
#   --wheels  what `deploy/build.sh --wheels DIRECTORY` has collected; it is called otherwise
# PYTHON builds (the checkout's environment, else python3). The package is for the Debian whose python3 has the same minor
# version: 3.11 is Debian 12, 3.13 is Debian 13. It holds a virtual environment of that python3, with all of Python that
# fleetlog needs, in /usr/lib/fleetlog; nothing is fetched while it is installed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
out=$top/dist wheels=""
while [ $# -gt 0 ]; do
  case "$1" in
    --out) out=$2 ;;
    --wheels) wheels=$2 ;;
    *) sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
  shift 2
done
python=${PYTHON:-$top/.venv/bin/python}
[ -x "$python" ] || python=$(command -v python3)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -z "$wheels" ]; then
  wheels=$work/context
  mkdir "$wheels"
  PYTHON=$python bash "$top/deploy/build.sh" --wheels "$wheels"
fi
wheels=$(cd "$wheels/wheels" && pwd)
version=$(cd "$wheels" && echo fleetlog-*.whl | cut -d- -f2)
minor=$("$python" -c 'import sys; print(sys.version_info.minor)')
architecture=$(dpkg --print-architecture)
package=$out/fleetlog_${version}_$architecture.deb

# The environment: it finds Debian's python3 by its own bin/python3, wherever the Python that builds is.
tree=$work/tree
venv=$tree/usr/lib/fleetlog
mkdir -p "$tree/DEBIAN" "$tree/usr/bin" "$venv/bin" "$tree/usr/share/doc/fleetlog" "$tree/usr/share/fleetlog" \
  "$tree/lib/systemd/system" "$tree/etc/fleetlog" "$out"
"$python" -m pip install -q --disable-pip-version-check --root-user-action ignore --no-index --find-links "$wheels" \
  --no-compile --target "$venv/lib/python3.$minor/site-packages" 'fleetlog[apply,bucket,console,oidc,schemas]'
rm -rf "$venv/lib/python3.$minor/site-packages/bin"
"$python" -m compileall -q --invalidation-mode unchecked-hash -s "$tree" -p / "$venv/lib"
printf 'home = /usr/bin\ninclude-system-site-packages = false\n' > "$venv/pyvenv.cfg"
ln -s "/usr/bin/python3.$minor" "$venv/bin/python3"
printf '#!/usr/lib/fleetlog/bin/python3 -I\nimport sys\n\nfrom fleetlog.brokers.cli.main import main\n\nsys.exit(main())\n' \
  > "$venv/bin/fleetlog"
chmod 755 "$venv/bin/fleetlog"
ln -s ../lib/fleetlog/bin/fleetlog "$tree/usr/bin/fleetlog"

cp "$top"/deploy/systemd/* "$tree/lib/systemd/system/"
cp "$here/broker-1.properties" "$tree/etc/fleetlog/"
cp "$top/LICENSE" "$tree/usr/share/doc/fleetlog/copyright"
cp -r "$top/deploy/monitoring/dashboards" "$top/deploy/monitoring/fleetlog.rules.yaml" "$tree/usr/share/fleetlog/"
install -m 755 "$here/postinst" "$here/prerm" "$here/postrm" "$tree/DEBIAN/"
echo /etc/fleetlog/broker-1.properties > "$tree/DEBIAN/conffiles"
cat > "$tree/DEBIAN/control" <<CONTROL
Package: fleetlog
Version: $version
Architecture: $architecture
Maintainer: fleetlog <fleetlog@localhost>
Section: net
Priority: optional
Depends: python3 (>= 3.$minor), python3 (<< 3.$((minor + 1))), libc6 (>= $(ldd --version | sed -n '1s/.* //p')), passwd
Suggests: openssl, prometheus, zookeeperd
Installed-Size: $(du -sk --exclude=DEBIAN "$tree" | cut -f1)
Description: brokers that speak the Apache Kafka protocol, beside ZooKeeper
 The command fleetlog, which runs brokers and a schema registry, asks them, and
 shows them in a browser; units for systemd, alert rules for Prometheus, dashboards for Grafana.
 The installation starts nothing.
CONTROL
chmod -R u=rwX,go=rX "$tree"
dpkg-deb --root-owner-group -Zzstd -z6 --build "$tree" "$package" >/dev/null
echo "$package"

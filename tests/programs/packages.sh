#!/usr/bin/env bash
# Installs a package on a copy of this machine, uses it, and removes it; what the copy becomes is lost at the end.
#
#   packages.sh deb|rpm PACKAGE
#
# Exit status 4: this machine gives no such copy, or cannot install that kind; the reason is on standard output.
set -euo pipefail
kind=$1
package=$2

# === On the copy ===
if [ "${3:-}" = inside ]; then
  case $kind in
    deb)
      there() { dpkg -s aliquot 2>/dev/null | grep -q '^Status: install ok installed'; }
      # Without the index of all manual pages, and without waiting for the disk.
      put() { dpkg --no-triggers --force-unsafe-io --install "$package"; }
      remove() { dpkg --no-triggers --purge aliquot; } ;;
    rpm)
      there() { rpm -q aliquot >/dev/null; }
      # No package of this machine's distribution is in the database of rpm, the C library included.
      put() { rpm --install --replacepkgs --nodeps "$package" 2>/dev/null; }
      remove() { rpm --erase aliquot 2>/dev/null; } ;;
  esac
  fail() { echo "packages.sh: $1"; exit 1; }
  [ ! -e /usr/bin/aliquot ] || fail "/usr/bin/aliquot is on this machine already"
  put >/dev/null
  there || fail "the database does not have the package"
  cd /
  aliquot version -o json
  aliquot devices --node mixed >/dev/null
  aliquot run --node t4-2 --memory 1Gi -- true
  kubectl-aliquot explain --help | grep -q 'Usage: kubectl aliquot explain'
  bash -euc 'source /usr/share/bash-completion/completions/aliquot; complete -p aliquot >/dev/null'
  ! command -v man >/dev/null || man -w aliquot-explain >/dev/null
  ! command -v systemd-analyze >/dev/null ||
    systemd-analyze verify --man=no aliquot-agent.service aliquot-run@one.service
  # The unit's own words, as systemd splits them.
  PART='--node t4-2 --memory 1Gi' COMMAND='/bin/sh -c true'
  line=$(sed -n 's/^ExecStart=//p' /usr/lib/systemd/system/aliquot-run@.service)
  eval "${line//%i/one}"
  [ -z "$(find /etc/systemd/system -name '*aliquot*')" ] || fail "a service is enabled"
  echo 'ALIQUOT_LOG=debug' >>/etc/aliquot/agent.env
  put >/dev/null
  grep -q '^ALIQUOT_LOG=debug' /etc/aliquot/agent.env || fail "a second installation lost the settings"
  [ -d /var/lib/aliquot ] || fail "runs of root left no state"
  remove >/dev/null
  ! there || fail "the database has the package after its removal"
  left=$(find /usr/bin /usr/lib/systemd /usr/share -name '*aliquot*' -not -path '/usr/share/doc/*' 2>/dev/null)
  [ -z "$left" ] || fail "left after the removal: $left"
  [ ! -e /usr/share/doc/aliquot ] || fail "left after the removal: its documentation"
  # What claims hold is not the package's to forget.
  [ -d /var/lib/aliquot ] || fail "the removal took the state"
  exit 0
fi

# === On this machine ===
tool=$([ "$kind" = deb ] && echo dpkg || echo rpm)
command -v "$tool" >/dev/null || { echo "$tool is missing"; exit 4; }
[ "$(id -u)" = 0 ] || { echo "only root mounts a copy of this machine"; exit 4; }
if [ -z "${COPY:-}" ]; then
  COPY=$(mktemp -d)
  export COPY
  trap 'rmdir "$COPY"' EXIT
  status=0
  unshare --mount --pid --fork --net -- "$0" "$kind" "$package" || status=$?
  exit $status
fi
mount -t tmpfs -o size=512m none "$COPY"
mkdir "$COPY/changes" "$COPY/work" "$COPY/top"
mount -t overlay -o "lowerdir=/,upperdir=$COPY/changes,workdir=$COPY/work" none "$COPY/top" ||
  { echo "no overlay of this machine's root"; exit 4; }
mount --rbind /dev "$COPY/top/dev"
mount -t proc proc "$COPY/top/proc"
for directory in /run /tmp; do
  mkdir -p "$COPY/top$directory"
  mount -t tmpfs -o mode=755 none "$COPY/top$directory"
done
install -D "$package" "$COPY/top/tmp/package/$(basename "$package")"
install "$0" "$COPY/top/tmp/package/check"
chroot "$COPY/top" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C \
  /bin/bash /tmp/package/check "$kind" "/tmp/package/$(basename "$package")" inside

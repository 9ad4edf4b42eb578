#!/usr/bin/env bash
# System packages, installed when this runs as root on a Debian-like machine; elsewhere it says what
# is missing. `python` is what running the server needs, `tests` what some tests use beyond that.
set -euo pipefail

missing=()
needs() { # command, package
  command -v "$1" >/dev/null 2>&1 || missing+=("$2")
}

case "${1:-}" in
  python)
    python="${PYTHON:-python3}"
    needs "$python" python3
    "$python" -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
    ;;
  tests)
    # The disks that the power-cut and disk-full tests destroy.
    needs mkfs.ext4 e2fsprogs
    needs losetup mount
    needs kcat kcat
    needs etcd etcd-server
    needs etcdctl etcd-client
    # Apache Kafka's own command line tools, whose jars Maven fetches.
    needs javac default-jdk-headless
    needs mvn maven
    # Reads the unit that `penstock generate systemd` prints.
    needs systemd-analyze systemd
    # The networks that the fault lab cuts.
    needs ip iproute2
    needs ss iproute2
    needs nsenter util-linux
    # The clock that it sets wrong on one node.
    needs faketime faketime
    # The browser whose requests a server has to tell from those of clients.
    needs chromium chromium
    ;;
  *)
    echo "usage: $0 python|tests" >&2
    exit 2
    ;;
esac

if [ "${#missing[@]}" -gt 0 ]; then
  if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
    # Tests start etcds of their own: the one that comes as a service with the package is not wanted.
    case " ${missing[*]} " in
      *" etcd-server "*) systemctl disable --now etcd >/dev/null 2>&1 || true ;;
    esac
  else
    echo "bootstrap: please install: ${missing[*]}" >&2
  fi
fi
if [ "$1" = python ] && ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  echo "Penstock needs Python 3.11 or newer; point PYTHON at one: make PYTHON=python3.12 run" >&2
  exit 1
fi

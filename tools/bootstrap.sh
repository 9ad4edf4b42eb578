#!/usr/bin/env bash
# Installs the system packages that tests use beyond Python: nothing is needed to run the server.
# As root on a Debian-like machine it installs them; elsewhere it says what is missing and goes on,
# and the tests that need them say so.
set -euo pipefail

# mke2fs and losetup make the disks that the power-cut and disk-full tests destroy.
declare -A package_of=([mkfs.ext4]=e2fsprogs [losetup]=mount)
missing=()
for program in "${!package_of[@]}"; do
  command -v "$program" >/dev/null 2>&1 || missing+=("${package_of[$program]}")
done
[ "${#missing[@]}" -gt 0 ] || exit 0
if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
else
  echo "bootstrap: install these for the fault tests: ${missing[*]}" >&2
fi

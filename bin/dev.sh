#!/bin/sh
# npm run dev: Berth with a simulated host, for those who change it (docs/developing/running.md). Needs neither root nor QEMU nor Debian.
set -eu
cd "$(dirname "$0")/.."
. bin/ensure-packages.sh
exec "$NODE" bin/dev.ts

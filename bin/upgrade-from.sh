#!/bin/sh
# npm run upgrade-from -- COMMIT: upgrades a fleet of an earlier commit to this one while it works, and back (test/fleet/upgrade.test.ts).
set -eu
cd "$(dirname "$0")/.."
[ $# -eq 1 ] || { echo 'usage: npm run upgrade-from -- COMMIT' >&2; exit 2; }
. bin/ensure-packages.sh
"$NODE" bin/prepare-tests.ts
export BERTH_UPGRADE_FROM="$1" BERTH_TEST_FAULTS=all
exec "$NODE" --test test/fleet/upgrade.test.ts

#!/bin/sh
# npm run bench -- [NAME…]: the figures, measured on this machine.
set -eu
cd "$(dirname "$0")/.."
. bin/ensure-packages.sh
"$NODE" bin/prepare-tests.ts
BERTH_TEST_IMAGE_DIR=$(readlink -f .cache/images/debian-12/current)
export BERTH_TEST_IMAGE_DIR
exec "$NODE" bench/main.ts "$@"

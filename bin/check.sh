#!/bin/sh
# npm run check: types, style and format. Nothing is run.
set -eu
cd "$(dirname "$0")/.."
. bin/ensure-packages.sh
echo '== types (tsc)'
node_modules/.bin/tsc -p .
node_modules/.bin/tsc -p console
echo '== style (biome)'
node_modules/.bin/biome check .

#!/bin/sh
# npm run check: types, style and format. Nothing is run.
set -eu
cd "$(dirname "$0")/.."
. bin/ensure-packages.sh
echo '== types (tsc)'
# One checker, as in bin/test.sh.
node_modules/.bin/tsc -p . --checkers 1
node_modules/.bin/tsc -p console
echo '== style (biome)'
node_modules/.bin/biome check .

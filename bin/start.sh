#!/bin/sh
# npm start: the packages and the web console, then the program. Everything else is the program's, after it has checked its settings.
set -eu
cd "$(dirname "$0")/.."
. bin/ensure-packages.sh
"$NODE" console/build.ts
exec "$NODE" src/main.ts start "$@"

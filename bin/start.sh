#!/bin/sh
# npm start: the packages, the web console and the documentation, then the program. Everything else is the program's, after it has checked its settings.
set -eu
cd "$(dirname "$0")/.."
. bin/ensure-packages.sh
"$NODE" bin/build-pages.ts
exec "$NODE" src/main.ts start "$@"

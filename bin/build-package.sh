#!/bin/sh
# What npm pack runs first: dist/, the program as it is installed. Node strips no types below node_modules, so it holds
# JavaScript; otherwise it is laid out as the project is, for src/ finds SQL, guest recipe and package.json from where
# it stands. dist/ appears whole or not at all.
set -eu
cd "$(dirname "$0")/.."
. bin/ensure-packages.sh
made=dist.new
rm -rf "$made"
node_modules/.bin/tsc -p tsconfig.package.json --outDir "$made"
# What is beside the code and is read at run time.
find src -type f \( -name '*.sql' -o -name '*.sh' -o -name '*.pl' -o -name '*.txt' \) ! -name schema.sql -exec cp --parents -t "$made" '{}' +
mkdir -p "$made/bin"
cp -R guest "$made/guest"
cp bin/debian-packages.txt "$made/bin/"
# What browsers get.
"$NODE" bin/build-pages.ts
for part in console site; do
  mkdir -p "$made/$part"
  cp -R "$part/dist" "$made/$part/dist"
done
# Its nearest package.json: the version, and that these are modules.
"$NODE" -p "const { name, version, license } = require('./package.json'); JSON.stringify({ name, version, license, type: 'module', private: true })" > "$made/package.json"
chmod -R u=rwX,go=rX "$made"
rm -rf dist
mv "$made" dist

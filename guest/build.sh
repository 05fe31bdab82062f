#!/usr/bin/env bash
# Builds the guest images debian-12 (without IMAGE) and debian-12-systemd from Debian packages:
#
#   guest/build.sh OUT_DIR [IMAGE]     vmlinuz, initrd.img, rootfs.img and manifest.json into OUT_DIR (as root)
#   guest/build.sh --version [IMAGE]   the version of this recipe: a hash over its files
#
# OUT_DIR appears whole or not at all: everything happens in a directory beside it, is written to disk, and is renamed.
# An OUT_DIR that exists is replaced. The kernel is downloaded and unpacked; nothing is installed on the host.
set -euo pipefail
export LC_ALL=C
umask 022

recipe=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly recipe
image=${2:-debian-12}
readonly image rootfs_bytes=1073741824 rootfs_max_gib=1024 needed_free_kib=$((3 * 1024 * 1024)) steps=5
log= work=

# shellcheck source=apt-sources.sh
source "$recipe/apt-sources.sh"

say() { printf '%s\n' "$*" >&3; }

step() {
  say "image $image: step $1/$steps $2 (${SECONDS}s)"
  echo "=== step $1: $2 (${SECONDS}s)"
}

fail() {
  printf 'image %s: %s\n' "$image" "$*" >&4
  exit 1
}

# Names, executable bits and contents of all files that decide what is in the image.
recipe_version() {
  (
    cd "$recipe"
    find . -type f ! -name '*.md' | sort | while read -r file; do
      [ -x "$file" ] && echo "executable $file" || echo "plain $file"
      cat "$file"
    done | { echo "image $image"; cat; } | sha256sum | cut -d ' ' -f 1
  )
}

check_host() {
  local out=$1 tool package parent free_kib
  [ "$(id -u)" = 0 ] || fail 'must run as root: the packages of the guest are installed into a chroot'
  [ "$(uname -m)" = x86_64 ] || fail "builds on x86_64 only, this is $(uname -m)"
  while read -r tool package; do
    command -v "$tool" > /dev/null || fail "the program $tool is missing: apt-get install $package"
  done <<- 'TOOLS'
	mmdebstrap mmdebstrap
	apt-get apt
	dpkg-deb dpkg
	mke2fs e2fsprogs
	cpio cpio
	busybox busybox-static
	TOOLS
  [ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || fail 'the keys of Debian are missing: apt-get install debian-archive-keyring'
  # The initrd has no libraries, so a busybox that needs some would not start there.
  if grep -qaF /lib64/ld-linux "$(command -v busybox)"; then
    fail 'busybox is not static: apt-get install busybox-static'
  fi
  parent=$(dirname "$out")
  mkdir -p "$parent"
  free_kib=$(df --output=avail -k "$parent" | tail -n 1)
  [ "$free_kib" -ge "$needed_free_kib" ] || fail "$parent has $((free_kib / 1024)) MiB free, building takes 3072 MiB"
}

# A failed or interrupted build leaves its log and nothing else. The log stays outside the directory that goes.
finish() {
  local status=$?
  trap - EXIT
  # Background work must not write into a directory that is going away.
  jobs -p | xargs -r kill 2> /dev/null || true
  wait 2> /dev/null || true
  # --one-file-system: should a mount of an interrupted installation be left, nothing behind it is deleted.
  [ -z "$work" ] || rm -rf --one-file-system "$work"
  if [ "$status" = 0 ] || [ ! -s "$log" ]; then
    rm -f "$log"
  else
    printf 'image %s: not built; full log: %s\n' "$image" "$log" >&4
  fi
  exit "$status"
}

# Into WORK/kernel: Debian's cloud kernel and its modules, unpacked.
fetch_kernel() {
  local package
  package=$(own_apt "$work" apt-cache depends linux-image-cloud-amd64 | awk '/Depends: linux-image-/ { print $2; exit }')
  [ -n "$package" ]
  mkdir "$work/kernel"
  (cd "$work/apt" && own_apt "$work" apt-get download "$package")
  dpkg-deb -x "$work/apt/$package"_*.deb "$work/kernel"
  ls "$work/kernel/lib/modules" > "$work/kernel_release"
}

# What is installed: the list of all images, and the image's own.
package_lists() {
  echo "$recipe/packages.txt"
  [ "$image" = debian-12 ] || echo "$recipe/packages-${image#debian-12-}.txt"
}

# Into WORK/root: Debian and the packages of the recipe.
install_packages() {
  # Documents and translations of what we install are left out; what the user installs later comes whole.
  local options=(--aptopt='APT::Sandbox::User "root"' --dpkgopt='path-exclude=/usr/share/man/*'
    --dpkgopt='path-exclude=/usr/share/info/*' --dpkgopt='path-exclude=/usr/share/locale/*'
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright')
  local line
  while read -r line; do
    options+=("--aptopt=${line%;}")
  done < <(apt_options 'Acquire::(Check-Valid-Until|Check-Date|http::Proxy|https::Proxy)')
  mmdebstrap --mode=root --variant=apt --format=directory --architectures=amd64 "${options[@]}" \
    --include="$(package_lists | xargs grep -hv '^#' | paste -sd,)" bookworm "$work/root" "$work/sources.list"
}

# The initrd: the drivers in load order, init, the perl that it is in, and busybox for the installation of images. Not compressed:
# under emulation unpacking costs more than reading.
build_initrd() {
  local tree=$work/initrd release module path
  release=$(cat "$work/kernel_release")
  mkdir -p "$tree"/{bin,dev,modules,proc,root,sys}
  cp "$(command -v busybox)" "$tree/bin/busybox"
  cp "$recipe/initrd/init" "$tree/init"
  # Where it runs there is no module of perl's, strict neither: a name that is not declared would be nothing, and no word.
  chroot "$work/root" perl -Mstrict -c < "$tree/init"
  chmod 0755 "$tree/init" "$tree/bin/busybox"
  {
    echo /usr/bin/perl
    chroot "$work/root" ldd /usr/bin/perl | grep -o '/[^ ]*'
  } | while read -r path; do
    mkdir -p "$tree$(dirname "$path")"
    cp -L "$work/root$path" "$tree$path"
  done
  grep -v '^#' "$recipe/initrd/modules.txt" | while read -r module; do
    chroot "$work/root" modprobe -S "$release" --show-depends "$module"
  done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' > "$work/module_paths"
  while read -r path; do
    cp "$work/root$path" "$tree/modules/"
    basename "$path" .ko
  done < "$work/module_paths" > "$tree/modules/load-order"
  files_of_every_boot | sort -u > "$tree/read-ahead"
  (cd "$tree" && find . | sort | cpio --quiet -o -H newc -R 0:0) > "$work/out/initrd.img"
}

# The programs that every boot runs on its way to a login, and their libraries.
files_of_every_boot() {
  local program
  echo /usr/lib/berth/busybox
  for program in /usr/sbin/sshd /usr/sbin/qemu-ga /bin/bash; do
    echo "$program"
    chroot "$work/root" ldd "$program" | grep -o '/[^ ]*'
  done
}

write_manifest() {
  local name comma=
  {
    printf '{"id":"%s","version":"%s","kernel_release":"%s","size_bytes":%s,"user":"root","files":{' \
      "$image" "$(recipe_version)" "$(cat "$work/kernel_release")" "$rootfs_bytes"
    for name in vmlinuz initrd.img rootfs.img; do
      printf '%s"%s":"%s"' "$comma" "$name" "$(sha256sum "$work/out/$name" | cut -d ' ' -f 1)"
      comma=,
    done
    printf '}}\n'
  } > "$work/out/manifest.json"
}

# Everything is on disk before it gets its name.
publish() {
  local out=$1
  chmod 0444 "$work"/out/*
  chmod 0755 "$work/out"
  sync "$work"/out/* "$work/out"
  if [ -e "$out" ]; then
    mv -T "$out" "$work/replaced"
  fi
  mv -T "$work/out" "$out"
  sync "$(dirname "$out")"
}

build() {
  local out kernel_job packages_job
  out=$(realpath -m "$1")
  check_host "$out"

  # One build at a time in one folder; who holds its lock may clear away what a killed build has left.
  exec 9< "$(dirname "$out")"
  flock -n 9 || fail "another build is running in $(dirname "$out")"
  rm -rf --one-file-system "$out".building.*
  work=$(mktemp -d "$out.building.XXXXXX")
  chmod 0755 "$work"
  mkdir "$work/out"

  step 1 'finding the Debian mirror'
  find_debian_sources "$work" 9>&-

  # Both as jobs: a signal ends the wait at once, and finish() ends them.
  step 2 'downloading the kernel, installing packages'
  fetch_kernel 9>&- &
  kernel_job=$!
  install_packages 9>&- &
  packages_job=$!
  wait "$kernel_job" || fail 'the kernel package could not be downloaded and unpacked'
  wait "$packages_job" || fail 'the packages could not be installed'

  step 3 'configuring the guest'
  configure_rootfs "$work" 9>&-

  step 4 'writing the disk and the initrd'
  cp "$work/kernel/boot/vmlinuz-$(cat "$work/kernel_release")" "$work/out/vmlinuz"
  build_initrd
  truncate -s "$rootfs_bytes" "$work/out/rootfs.img"
  # resize=: room for the group descriptors of the largest disk (in 4 KiB blocks), so that it grows online.
  # ^64bit: so that this is half as much, which growing reads, and writes anew for each copy of the superblock.
  # assume_storage_prezeroed: a new sparse file is zeroes, so the kernel has no inode table to clear later.
  mke2fs -q -F -t ext4 -b 4096 -m 0 -e remount-ro -L berth-root -J size=32 -d "$work/root" \
    -O ^64bit -E "root_owner=0:0,resize=$((rootfs_max_gib * 262144)),assume_storage_prezeroed=1" "$work/out/rootfs.img"

  step 5 'checksums'
  write_manifest
  publish "$out"
  say "image $image: ready in $out (${SECONDS}s)"
}

# shellcheck source=configure-rootfs.sh
source "$recipe/configure-rootfs.sh"

case "$image" in
debian-12 | debian-12-systemd) ;;
*)
  echo "${0##*/}: there is no recipe for $image" >&2
  exit 2
  ;;
esac
case "${1-}" in
--version)
  recipe_version
  exit 0
  ;;
'' | -*)
  echo "usage: ${0##*/} OUT_DIR [IMAGE] | --version [IMAGE]" >&2
  exit 2
  ;;
esac
log=$(mktemp "${TMPDIR:-/tmp}/berth-image-XXXXXX.log")
exec 3>&1 4>&2 > "$log" 2>&1
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
build "$1"

# Sourced by build.sh. Turns the installed packages into the guest: our files, our init in place of a distribution's,
# nothing in it that two instances must not share.

# configure_rootfs WORK_DIR: WORK_DIR/root and the unpacked WORK_DIR/kernel → the finished tree in WORK_DIR/root.
configure_rootfs() {
  local work=$1 root=$1/root release file name
  release=$(cat "$work/kernel_release")

  # Our files, whatever the modes of the checkout are.
  (cd "$recipe/rootfs" && find . -type f) | while read -r file; do
    if [ -x "$recipe/rootfs/$file" ]; then
      install -D -m 0755 "$recipe/rootfs/$file" "$root/$file"
    else
      install -D -m 0644 "$recipe/rootfs/$file" "$root/$file"
    fi
  done

  install -m 0755 "$(command -v busybox)" "$root/usr/lib/berth/busybox"
  # The perl of the execs' supervisor, which images of other systems get too: the program, its libraries, and their loader.
  mkdir -p "$root/usr/lib/berth/perl"
  {
    echo /usr/bin/perl
    chroot "$root" ldd /usr/bin/perl | grep -o '/[^ ]*'
  } | while read -r file; do
    cp -L "$root$file" "$root/usr/lib/berth/perl/"
  done
  # Of the packages' own start scripts none is wanted: init runs sshd and the guest agent, the rest has nothing to do.
  if [ "$image" = debian-12 ]; then
    for file in "$root"/etc/init.d/*; do
      name=${file##*/}
      chroot "$root" update-rc.d "$name" disable > /dev/null 2>&1 || true
    done
    rm -f "$root"/etc/rc[0-6S].d/S* "$root"/etc/rc[06].d/K*
  fi
  # As in every image: init, services, sshd's settings, no identity.
  chroot "$root" /usr/lib/berth/busybox sh /usr/lib/berth/take-over

  mkdir -p "$root/usr/lib/modules" "$root/boot"
  cp -a "$work/kernel/lib/modules/$release" "$root/usr/lib/modules/"
  cp "$work/kernel/boot/config-$release" "$root/boot/"
  chroot "$root" depmod "$release"

  # apt in the guest: the mirror as it was found, and its date checks as on this host; no proxy, no options of the build.
  rm -f "$root"/etc/apt/apt.conf.d/99mmdebstrap "$root"/etc/dpkg/dpkg.cfg.d/99mmdebstrap
  rm -f "$root"/etc/apt/sources.list.d/*
  cp "$work/sources.list" "$root/etc/apt/sources.list"
  apt_options 'Acquire::(Check-Valid-Until|Check-Date)' > "$work/apt_mirror"
  [ ! -s "$work/apt_mirror" ] || install -m 0644 "$work/apt_mirror" "$root/etc/apt/apt.conf.d/90mirror"

  echo debian > "$root/etc/hostname"
  printf '127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n' > "$root/etc/hosts"
  chmod 0644 "$root"/etc/{hostname,hosts}
  rm -rf "$root"/tmp/* "$root"/run/* "$root"/var/cache/apt/*.bin "$root"/var/log/*.log "$root"/var/log/apt/*
}

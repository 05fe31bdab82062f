#!/bin/sh
# packaging/container/try.sh: builds the image from the last commit, runs it, and shows that an instance and its data
# outlive the container. Takes some minutes and needs the network; touches no other container, image or volume.
#   ENGINE     podman or docker; default: the installed one
#   RUN_FLAGS  more words for its run, where this machine needs them (--ulimit …)
# Without a registry, make an image debian:12 first (mmdebstrap).
set -eu
cd "$(dirname "$0")/../.."
engine=${ENGINE-$(command -v podman || command -v docker || true)}
if [ -z "$engine" ]; then
  echo 'skipped: neither podman nor docker is here (apt-get install podman)' >&2
  exit 0
fi
name=berth-try-$$
port=${PORT-7466}
here=$(mktemp -d)
done_with() {
  "$engine" rm -f "$name" > /dev/null 2>&1 || true
  "$engine" volume rm "$name" > /dev/null 2>&1 || true
  "$engine" rmi "$name" > /dev/null 2>&1 || true
  rm -rf "$here"
}
trap done_with EXIT
trap 'exit 130' INT TERM
say() { echo "try: $*"; }
berth() { "$engine" exec "$name" berth "$@"; }
run() {
  # shellcheck disable=SC2086
  "$engine" run -d --name "$name" --network host --cgroupns host --privileged ${RUN_FLAGS-} -e "BERTH_LISTEN=127.0.0.1:$port" \
    -e BERTH_SSH_PORTS=28900-28999 -v "$name:/var/lib/berth" "$name" > /dev/null
}
ready() {
  tries=0
  until "$engine" exec "$name" /usr/lib/berth/node_modules/.bin/node /usr/lib/berth/healthy.mjs 2> /dev/null; do
    tries=$((tries + 1))
    if [ "$tries" -ge 900 ] || [ "$("$engine" inspect -f '{{.State.Running}}' "$name")" != true ]; then
      "$engine" logs "$name" >&2
      exit 1
    fi
    sleep 1
  done
}
expect() {
  [ "$1" = "$2" ] || { echo "try: expected “$2”, got “$1”" >&2; exit 1; }
}

say 'building it from a clean clone'
git clone -q . "$here/berth"
"$engine" build --network host -t "$name" "$here/berth" > "$here/build.log" 2>&1 || { tail -n 50 "$here/build.log" >&2; exit 1; }
say 'running it'
run
ready
say "healthy; an instance, a VM, ssh into it"
berth up web 'uname -sr; echo flushed > /root/a'
berth flush web
berth up web 'echo synced > /root/b; sync'
say 'the container restarts, its VM with it'
"$engine" restart -t 60 "$name" > /dev/null
ready
expect "$(berth up web 'cat /root/a /root/b' | tr '\n' ' ')" 'flushed synced '
berth stop web
say 'another container, as after an upgrade, on the same volume'
"$engine" rm -f "$name" > /dev/null
run
ready
expect "$(berth up web 'cat /root/a /root/b' | tr '\n' ' ')" 'flushed synced '
berth stop web
say 'all there'

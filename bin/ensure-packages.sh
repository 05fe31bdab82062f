# Installs the npm packages of package-lock.json, unless they are installed, and sets $NODE to the Node.js among them.
# The scripts beside this file source it from the project's folder. The stamp has the hash of the lock file, because a
# checkout changes the file's time. It is written last, so an interrupted installation is repeated.

NODE=node_modules/.bin/node
# Only for Linux is there a Node.js among the packages. Elsewhere (`npm run dev`, untried) the one of the PATH must be 24 or newer.
[ "$(uname -s)" = Linux ] || NODE=$(command -v node || true)
stamp=node_modules/.berth-installed

berth_fail() {
  echo "berth: $*" >&2
  exit 1
}

wanted_stamp() { { sha256sum package-lock.json 2> /dev/null || shasum -a 256 package-lock.json; } | cut -d ' ' -f 1; }

packages_are_there() { [ -x "$NODE" ] && [ "$(cat "$stamp" 2> /dev/null)" = "$(wanted_stamp)" ]; }

install_packages() {
  # Another one may have done it while we waited for the lock.
  packages_are_there && return
  command -v npm > /dev/null || berth_fail 'npm is missing: install Node.js 20 or newer (https://nodejs.org)'
  echo 'berth: installing the packages of this project (npm ci)' >&2
  # The database's user must be able to run what is installed here. Not its warnings: of the npm's own Node.js, mostly, which
  # is not the one that runs this.
  (umask 022 && npm ci --loglevel=error --include=dev --include=optional) >&2 || berth_fail 'npm ci failed, see above'
  [ -x "$NODE" ] || berth_fail "npm ci has brought no Node.js for this machine ($(uname -sm)); Linux on x86_64 or aarch64 is needed"
  # `set -e` is off below `||`.
  wanted_stamp > "$stamp.new" && mv "$stamp.new" "$stamp" || berth_fail "$stamp cannot be written"
}

if ! packages_are_there; then
  mkdir -p .cache
  (
    # One at a time: npm ci begins by deleting node_modules.
    if command -v flock > /dev/null; then flock 9; fi
    install_packages
  ) 9> .cache/npm-ci.lock || exit 1
fi

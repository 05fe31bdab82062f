#!/bin/sh
# npm test [-- PATTERN]: every check, in the order of what it costs, up to the first that fails. With PATTERN (a regular
# expression, as of grep -E) only the test files whose paths match are run.
set -eu
[ $# -le 1 ] || { echo 'usage: npm test [-- PATTERN]' >&2; exit 2; }
cd "$(dirname "$0")/.."
began=$(date +%s)
pattern=${1-}
stage='preparing'
results=.cache/test-results

finish() {
  status=$?
  trap - EXIT
  seconds=$(($(date +%s) - began))
  echo
  cat "$results"/*.tap 2> /dev/null | grep -E '^# (tests|pass|fail|cancelled|skipped|todo) ' |
    awk '!($2 in sum) { order[++n] = $2 } { sum[$2] += $3 } END { for (i = 1; i <= n; i++) print "# " order[i] " " sum[order[i]] }'
  if [ "$status" = 0 ]; then
    echo "== all passed in ${seconds} s"
  else
    # Innermost first: the test itself, then what it is part of.
    cat "$results"/*.tap 2> /dev/null | grep -E '^ *not ok ' | sed -E 's/^ *not ok [0-9]+ - /failed: /' | head -n 40 || true
    echo "== FAILED: $stage (after ${seconds} s)"
  fi
  exit "$status"
}

heading() {
  stage=$1
  echo
  echo "== $stage"
}

# run_tests NAME CONCURRENCY FILE…
run_tests() {
  name=$1 concurrency=$2
  shift 2
  [ $# -gt 0 ] || return 0
  heading "$name ($# files)"
  "$NODE" --test --import ./test/support/end-of-file.ts --test-concurrency="$concurrency" --test-timeout=600000 \
    --test-reporter=spec --test-reporter-destination=stdout \
    --test-reporter=tap --test-reporter-destination="$results/$(echo "$name" | tr -c 'a-z\n' '-').tap" "$@"
}

# Test files below the given folders that match PATTERN.
test_files() {
  for folder; do
    [ -d "$folder" ] && find "$folder" -name '*.test.ts' -type f
  done | grep -E -e "$pattern" | sort || true
}

trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
. bin/ensure-packages.sh
rm -rf "$results"
mkdir -p "$results"
# Each test file is a process of its own, and starts more of them: none translates the same sources again.
rm -rf .cache/compiled
NODE_COMPILE_CACHE=$PWD/.cache/compiled
export NODE_COMPILE_CACHE

# What boots guests: two at a time, which a machine of two cores bears.
guest_folders='test/guest test/fault test/e2e test/fleet'
parallel_folders=$(find test -mindepth 1 -maxdepth 1 -type d | sort | grep -vxE "$(echo "$guest_folders" | tr ' ' '|')" || true)
# File names have no spaces here: lists of them are split by words.
unit=$(test_files src bin bench console)
integration=$(test_files $parallel_folders)
guests=$(test_files $guest_folders)
[ -n "$unit$integration$guests" ] || { stage="no test file matches $pattern"; exit 1; }

if [ -z "$pattern" ]; then
  heading 'types (tsc)'
  node_modules/.bin/tsc -p .
  node_modules/.bin/tsc -p console
  heading 'style (biome)'
  node_modules/.bin/biome check .
fi
run_tests 'unit and property tests' 2 $unit
if [ -n "$integration$guests" ]; then
  heading 'Debian packages and guest image'
  "$NODE" bin/prepare-tests.ts
  "$NODE" console/build.ts
  BERTH_TEST_IMAGE_DIR=$(readlink -f .cache/images/debian-12/current)
  export BERTH_TEST_IMAGE_DIR
fi
# They wait for each other's processes more than they compute.
run_tests 'integration tests' 3 $integration
run_tests 'guest tests' 2 $guests

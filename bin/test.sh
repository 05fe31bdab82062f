#!/bin/sh
# npm test: checks types and style, and runs the test files that take some seconds, the cheapest first. Stops at the first stage that fails.
# npm run test:long: runs the other test files, those of bin/long-tests.txt, and the tests in turn (bin/tests-in-turn.txt).
# npm test -- --unit: types, style, and the tests of `npm test` that need neither root nor a guest image, on any Linux.
# npm test -- PATTERN: runs the test files whose paths match PATTERN, a regular expression as of grep -E.
set -eu
files=short
case ${1-} in
  --long) files=long; shift ;;
  --unit) files=unit; shift ;;
esac
[ $# -le 1 ] || { echo 'usage: npm test [-- --unit | -- PATTERN]' >&2; exit 2; }
[ $# -eq 0 ] || files=matching
cd "$(dirname "$0")/.."
began=$(date +%s)
pattern=${1-}
stage='preparing'
results=.cache/test-results
preparation=

finish() {
  status=$?
  trap - EXIT
  [ -z "$preparation" ] || kill "$preparation" 2> /dev/null || true
  seconds=$(($(date +%s) - began))
  echo
  cat "$results"/*.tap 2> /dev/null | grep -E '^# (tests|pass|fail|cancelled|skipped|todo) ' |
    awk '!($2 in sum) { order[++n] = $2 } { sum[$2] += $3 } END { for (i = 1; i <= n; i++) print "# " order[i] " " sum[order[i]] }'
  if [ "$status" = 0 ]; then
    echo "== all passed in ${seconds} s"
  else
    # Innermost first: the test itself, then its suite.
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

# Chooses the line of bin/tests-in-turn.txt by the day of the commit; without a history, as in a package, the first one.
choose_in_turn() {
  lines=$(grep -v '^#' bin/tests-in-turn.txt)
  count=$(echo "$lines" | wc -l)
  seconds=$(git log -1 --format=%ct 2> /dev/null) || seconds=0
  number=$((seconds / 86400 % count + 1))
  BERTH_TEST_FAULTS=$(echo "$lines" | sed -n "${number}p")
  export BERTH_TEST_FAULTS
  echo "== tests in turn, $number of $count by the date of the commit: $BERTH_TEST_FAULTS"
}

# Test files below the given folders: the short ones, those of bin/long-tests.txt in its order, or those that match PATTERN.
test_files() {
  find "$@" -name '*.test.ts' -type f 2> /dev/null | grep -E -e "$pattern" | sort |
    awk -v files="$files" -v in_turn=" ${BERTH_TEST_FAULTS-} " 'NR == FNR { rank[$1] = NR; next }
      files == "matching" || (files == "long") == ($1 in rank) || (files == "long" && index(in_turn, " " $1 " ")) { print (($1 in rank) ? rank[$1] : 1000) "\t" $1 }' bin/long-tests.txt - |
    sort -n -s -k 1,1 | cut -f 2 || true
}

count() {
  echo $#
}

# Waits for the preparation, and prints what it did.
prepared() {
  status=0
  wait "$preparation" || status=$?
  preparation=
  cat "$results/preparation.txt"
  [ "$status" = 0 ] || exit "$status"
}

trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
. bin/ensure-packages.sh
rm -rf "$results"
mkdir -p "$results"
# Each test file runs in its own process, which starts more of them. The cache keeps our sources without their types.
rm -rf .cache/compiled
NODE_COMPILE_CACHE=$PWD/.cache/compiled
export NODE_COMPILE_CACHE
# One line a file, with the seconds that it took. bin/long-tests.txt is made from it.
BERTH_TEST_DURATIONS=$PWD/$results/durations.txt
export BERTH_TEST_DURATIONS

[ "$files" != long ] || [ -n "${BERTH_TEST_FAULTS-}" ] || choose_in_turn
# File names have no spaces: the lists are split into words.
unit=$(test_files src bin bench console adapters)
# Those in these folders need no guest image.
imageless='^test/(client|control-plane|db|dev|house|ingress|protocol|webhooks)/'
integration=$(test_files test | grep -E "$imageless" || true)
guests=$([ "$files" = unit ] || test_files test | grep -vE "$imageless" || true)
# It takes longest: the others run beside it, and none waits for it at the end.
longest=test/fleet/fleet-rounds.test.ts
guests=$({ echo "$guests" | grep -x "$longest"; echo "$guests" | grep -vx "$longest"; } || true)
[ -n "$unit$integration$guests" ] || { stage="no test file matches $pattern"; exit 1; }

if [ -n "$integration$guests" ]; then
  # While the first stages run: the image takes a minute, once.
  (
    # Without root there are the Debian packages that there are. A test that needs another one is skipped.
    if [ "$files" = unit ]; then "$NODE" bin/build-pages.ts; else "$NODE" bin/prepare-tests.ts programs; fi
    : > "$results/programs-ready"
    [ -z "$guests" ] || exec "$NODE" bin/prepare-tests.ts image
  ) > "$results/preparation.txt" 2>&1 &
  preparation=$!
fi
if [ "$files" = short ] || [ "$files" = unit ]; then
  heading 'types (tsc)'
  # One checker: by default four work, and each infers most types again, for twice the processor time.
  node_modules/.bin/tsc -p . --checkers 1
  node_modules/.bin/tsc -p console
  heading 'style (biome)'
  node_modules/.bin/biome check .
fi
if [ -n "$unit" ]; then
  heading "unit and property tests ($(count $unit) files)"
  "$NODE" --test --test-concurrency=2 --test-timeout=600000 --import ./test/support/end-of-file.ts \
    --test-reporter=spec --test-reporter-destination=stdout --test-reporter=tap --test-reporter-destination="$results/unit.tap" $unit
fi
if [ -n "$integration" ]; then
  heading 'Debian packages and console'
  while [ ! -e "$results/programs-ready" ] && kill -0 "$preparation" 2> /dev/null; do sleep 0.1; done
  [ -e "$results/programs-ready" ] || prepared
  heading "integration tests ($(count $integration) files)"
  "$NODE" bin/run-tests.ts "$results/integration.tap" $integration
fi
if [ -n "$guests" ]; then
  heading 'Debian packages, console and guest image'
  prepared
  BERTH_TEST_IMAGE_DIR=$(readlink -f .cache/images/debian-12/current)
  export BERTH_TEST_IMAGE_DIR
  heading "tests of processes and guests ($(count $guests) files)"
  "$NODE" bin/run-tests.ts "$results/guests.tap" $guests
fi

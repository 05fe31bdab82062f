# Sourced by build.sh. Finds out which mirror to use: the one this host uses for Debian 12 itself. apt is asked, rather
# than its files read, so both source formats count, and what is not Debian's own is told apart by its signed Origin.

# find_debian_sources WORK_DIR: refreshes an index of our own (the host's stays as it is) and writes
# WORK_DIR/sources.list with the Debian 12 main entries. Also proves that the mirror can be reached.
find_debian_sources() {
  local work=$1 targets
  mkdir -p "$work/apt/lists/partial" "$work/apt/cache/archives/partial"
  local own_state=(-o "Dir::State::lists=$work/apt/lists" -o "Dir::Cache=$work/apt/cache" -o Acquire::Languages=none
    -o APT::Sandbox::User=root -o Acquire::Retries=2 -o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20)
  # Third-party sources may fail here without harm, so the exit status says little: the result is checked below.
  apt-get "${own_state[@]}" update || true
  targets=$(apt-get "${own_state[@]}" indextargets \
    --format '$(ORIGIN)|$(CODENAME)|$(COMPONENT)|$(REPO_URI)|$(FILENAME)' 'Created-By: Packages' 'Architecture: amd64')
  # Only http(s), because the guest must reach it too, and no address with a password in it, because the guest would keep it.
  awk -F'|' '$1 == "Debian" && $2 ~ /^bookworm(-updates|-security)?$/ && $3 == "main" \
      && $4 ~ /^https?:\/\// && $4 !~ /^[^\/]*\/\/[^\/]*@/ && !seen[$2]++ { print "deb " $4 " " $2 " main" }' \
    <<< "$targets" > "$work/sources.list"
  grep -q ' bookworm main$' "$work/sources.list" \
    || fail "no Debian 12 mirror can be used: this host's apt must have an http(s) source for Debian bookworm main, and reach it (try: apt-get update)"
}

# apt_options REGEX: the host's apt settings whose names match, as apt.conf lines.
apt_options() {
  apt-config dump | grep -E "^($1) \"[^\"]+\";\$" || true
}

# own_apt WORK_DIR apt-get|apt-cache ARGUMENTS…: with the entries found above and the host's trust and proxy settings only.
own_apt() {
  local work=$1 tool=$2
  shift 2
  "$tool" -o "Dir::State::lists=$work/apt/lists" -o "Dir::Cache=$work/apt/cache" -o "Dir::Etc::sourcelist=$work/sources.list" \
    -o Dir::Etc::sourceparts=/dev/null -o Dir::Etc::preferences=/dev/null -o Dir::Etc::preferencesparts=/dev/null \
    -o APT::Sandbox::User=root "$@"
}

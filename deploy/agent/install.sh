#!/bin/sh
# Install, upgrade or roll back the agent of this machine. Each version stands in a folder of its own; `current` points at
# one of them, and the state folder belongs to none, so that a change of version loses no attempt.
#
#   install.sh firsttoken-1.2.3-py3-none-any.whl [--lock agent.txt]   put this version beside the others and switch to it
#   install.sh --rollback                                             switch back to the version before
#   install.sh --list                                                 what stands here, and which is current
#
# --lock FILE        exact versions with hashes of what the wheel needs (locks/agent.txt); without it pip chooses
# --root DIRECTORY   instead of /opt/firsttoken
# --no-service       do not restart the systemd service
set -eu
umask 022 # whoever the agent runs as may read its programs, whatever the caller's habits are

root=/opt/firsttoken
service=firsttoken-agent
lock='' wheel='' action=install restart=yes
fail() { echo "install.sh: $*" >&2; exit 2; }

while [ $# -gt 0 ]; do
  case $1 in
    --rollback) action=rollback ;;
    --list) action=list ;;
    --no-service) restart=no ;;
    --root | --lock)
      [ $# -ge 2 ] || fail "$1 needs a value"
      case $1 in --root) root=$2 ;; --lock) lock=$2 ;; esac
      shift ;;
    -*) fail "there is no option $1; the head of this file lists them" ;;
    *) [ -z "$wheel" ] || fail "one wheel at a time"; wheel=$1 ;;
  esac
  shift
done

versions=$root/versions

# The link is replaced in one step: whoever starts the agent meanwhile gets one whole version or the other.
switch_to() {
  ln -sfn "versions/$1" "$root/current.new"
  mv -T "$root/current.new" "$root/current"
  echo "current: $1"
}

restart_service() {
  [ "$restart" = yes ] || return 0
  command -v systemctl >/dev/null || { echo "There is no systemd here: restart the agent yourself."; return 0; }
  systemctl restart "$service"
}

current() { readlink "$root/current" 2>/dev/null | sed 's|^versions/||'; }

install_wheel() {
  case ${wheel##*/} in
    firsttoken-*.whl) ;;
    *) fail "give the wheel to install (firsttoken-VERSION-py3-none-any.whl), --rollback or --list" ;;
  esac
  [ -r "$wheel" ] || fail "$wheel cannot be read"
  [ -z "$lock" ] || [ -r "$lock" ] || fail "$lock cannot be read"
  python3 -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
    fail "Python 3.11 or newer with venv is needed: apt-get install python3-venv"
  version=$(echo "${wheel##*/}" | cut -d- -f2)
  place=$versions/$version
  before=$(current)
  if [ -e "$place/installed" ]; then
    echo "$version stands here already"
  else
    mkdir -p "$versions"
    rm -rf "$place"
    python3 -m venv "$place"
    if [ -n "$lock" ]; then
      "$place/bin/pip" install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r "$lock"
      "$place/bin/pip" install --quiet --disable-pip-version-check --no-deps "$wheel"
    else
      "$place/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: "$wheel"
    fi
    "$place/bin/firsttoken" --version >/dev/null || fail "$version does not start; nothing was switched"
    : >"$place/installed"
  fi
  if [ "$before" != "$version" ]; then
    [ -z "$before" ] || echo "$before" >"$root/previous"
    switch_to "$version"
  fi
  restart_service
}

rollback() {
  [ -s "$root/previous" ] || fail "there is no version before this one"
  before=$(cat "$root/previous")
  [ -e "$versions/$before/installed" ] || fail "version $before is not installed any more"
  current >"$root/previous"
  switch_to "$before"
  restart_service
}

list() {
  [ -d "$versions" ] || { echo "nothing is installed in $root"; return 0; }
  for place in "$versions"/*/installed; do
    [ -e "$place" ] || continue
    name=$(basename "$(dirname "$place")")
    if [ "$name" = "$(current)" ]; then echo "$name (current)"; else echo "$name"; fi
  done
}

case $action in
  install) install_wheel ;;
  rollback) rollback ;;
  list) list ;;
esac

#!/bin/sh
# Rules and routes as the environment says (docs/alerts.md), made at every start, into the folder $1. $2: prometheus.yml.
set -eu
umask 022
mkdir -p "$1/prometheus" "$1/alertmanager"

# A file is there whole or not at all: a mistake in the environment leaves the last good one, and stops the start.
make_file() {
  file=$1
  shift
  "$@" >"$file.new"
  mv "$file.new" "$file"
}

make_file "$1/prometheus/prometheus.yml" cat "$2"
make_file "$1/prometheus/firsttoken.rules.yml" firsttoken rules
make_file "$1/alertmanager/alertmanager.yml" firsttoken alertmanager --templates /etc/alertmanager/firsttoken.tmpl
make_file "$1/alertmanager/firsttoken.tmpl" firsttoken alertmanager --show-templates

#!/bin/sh
# A token for each agent of the compose file, in its own folder under $1; those that have one keep it.
set -eu
root=$1
shift
umask 077
for vantage in "$@"; do
  [ -s "$root/$vantage/token" ] ||
    firsttoken vantage add "$vantage" --config /etc/firsttoken/firsttoken.yaml --token-file "$root/$vantage/token"
  cp "$root/ca.pem" "$root/$vantage/ca.pem"
done

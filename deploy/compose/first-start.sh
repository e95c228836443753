#!/bin/sh
# Make what must exist before anything starts and must be nobody's default: passwords, and a certificate for the proxy.
# Runs at every start and makes only what is missing. $1: the folder, with one subfolder for each service that may read it.
# $2: names for the certificate, comma-separated. To use a certificate of your own, put fullchain.pem and privkey.pem into
# the folder's proxy/, and the CA that agents of this compose file shall trust into agents/ca.pem.
set -eu
root=$1 names=${2:-localhost}
umask 077

password() { openssl rand -hex 24; }

# keep FILE COMMAND...: the file holds what the command prints, once; a start that was cut short leaves no half of it.
keep() {
  file=$1
  shift
  [ -s "$file" ] && return 0
  "$@" >"$file.new"
  mv "$file.new" "$file"
  echo "made $file"
}

database_url() { printf 'postgresql://firsttoken:%s@postgres:5432/firsttoken' "$(cat "$root/postgres/firsttoken")"; }

reader() { printf 'reader:%s\n' "$(openssl passwd -apr1 -in "$root/readers/password")"; }

certificate() {
  san='' separator=''
  for name in $(echo "$names" | tr ',' ' '); do
    case $name in
      *[!0-9.]*) san=$san${separator}DNS:$name ;;
      *) san=$san${separator}IP:$name ;;
    esac
    separator=,
  done
  work=$(mktemp -d)
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -days 3650 -subj "/CN=First Token local CA" \
    -addext "basicConstraints=critical,CA:TRUE,pathlen:0" -addext "keyUsage=critical,keyCertSign,cRLSign" \
    -keyout "$work/ca.key" -out "$work/ca.pem" 2>/dev/null
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -subj "/CN=First Token proxy" \
    -keyout "$work/privkey.pem" -out "$work/proxy.csr" 2>/dev/null
  printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth\nbasicConstraints=CA:FALSE\n' "$san" >"$work/extensions"
  openssl x509 -req -in "$work/proxy.csr" -CA "$work/ca.pem" -CAkey "$work/ca.key" -days 825 \
    -extfile "$work/extensions" -out "$work/proxy.pem" 2>/dev/null
  cat "$work/proxy.pem" "$work/ca.pem" >"$work/fullchain.pem"
  cp "$work/ca.pem" "$root/agents/ca.pem"
  cp "$work/privkey.pem" "$root/proxy/privkey.pem"
  cp "$work/fullchain.pem" "$root/proxy/fullchain.pem" # last: its presence says that all of it is there
  rm -rf "$work"                                       # with the CA's key: nobody signs another one
  echo "made a certificate for $names"
}

for folder in postgres hub grafana proxy readers agents agents/lagos agents/london agents/virginia; do
  mkdir -p "$root/$folder"
done

keep "$root/postgres/superuser" password
keep "$root/postgres/firsttoken" password
keep "$root/hub/database_url" database_url
keep "$root/grafana/grafana_postgres_password" password
keep "$root/grafana/admin_password" password
keep "$root/readers/password" password
keep "$root/proxy/readers" reader
[ -s "$root/proxy/fullchain.pem" ] || certificate
cp "$root/grafana/grafana_postgres_password" "$root/postgres/grafana"

# Each service's folder belongs to the user that its image runs as.
if [ "$(id -u)" = 0 ]; then
  chown -R 999:999 "$root/postgres"
  chown -R 10001:10001 "$root/hub" "$root/agents"
  chown -R 472:0 "$root/grafana"
  chown -R 101:101 "$root/proxy"
fi
chmod -R u=rwX,go= "$root"
chmod 711 "$root"

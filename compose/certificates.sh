#!/usr/bin/env bash
# Makes a CA, and what it signs: a certificate for the servers of etcd.yaml and postgres.yaml and one for clients, into this folder. For trying only:
# the CA's key is thrown away, and nothing is asked for.
set -euo pipefail
mkdir -p "${1:?which folder?}"
cd "$1"
new_key() { openssl genpkey -quiet -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1"; }
ca_key=$(mktemp)
trap 'rm -f "$ca_key"' EXIT
new_key "$ca_key"
openssl req -x509 -new -key "$ca_key" -days 30 -subj "/CN=leasehold compose" -out ca.pem \
  -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign
for name in server client; do
  new_key "$name.key"
  openssl req -new -key "$name.key" -subj "/CN=$name" |
    openssl x509 -req -CA ca.pem -CAkey "$ca_key" -set_serial "0x$(openssl rand -hex 16)" -days 30 -out "$name.pem" -extfile <(
      echo "subjectAltName=DNS:localhost,IP:127.0.0.1,DNS:etcd-1,DNS:etcd-2,DNS:etcd-3"
      # A member shows its certificate to the others as a client, too.
      echo "extendedKeyUsage=serverAuth,clientAuth"
    ) 2>/dev/null
done
# The servers in the containers are other users.
chmod 644 ./*.key

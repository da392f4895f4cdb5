#!/bin/sh
# Places an order and follows it. See README.md for the variables.
set -eu
: "${SALE:?the sale\'s id}" "${TOKEN:?the buyer\'s bearer token}"
URL=${URL:-http://127.0.0.1:8080}
KEY=${KEY:-$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Sends a request; leaves the body in $work/body, and prints the status and two headers. 000 means no answer.
send() {
	curl -sS --max-time 20 -o "$work/body" -H "Authorization: Bearer $TOKEN" \
		-w '%{http_code} %header{retry-after}|%header{location}' "$@" || true
}
field() { sed -nE "s/.*\"$1\":\"?([a-z_]+)\"?.*/\1/p" "$work/body" | head -n 1; }
finish() { cat "$work/body"; echo; exit "$1"; }

tries=0
location=
while [ "$tries" -lt 10 ]; do
	tries=$((tries + 1))
	: >"$work/body"
	if [ -z "$location" ]; then
		answer=$(send -X POST -H "Idempotency-Key: $KEY" "$URL/v1/sales/$SALE/orders")
	else
		answer=$(send "$URL$location?wait=10")
	fi
	code=${answer%% *} rest=${answer#* }
	case $code in
	200 | 201 | 202)
		location=${location:-${rest#*|}}
		case $(field status) in
		accepted) continue ;;
		confirmed | paid) finish 0 ;;
		*) finish 3 ;;
		esac
		;;
	000) sleep 1 ;;
	*)
		[ "$(field retryable)" = true ] || finish 3
		pause=${rest%%|*}
		sleep "${pause:-1}"
		;;
	esac
done
finish 1

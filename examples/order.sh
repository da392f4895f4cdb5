#!/bin/sh
# Places an order and follows its events. See README.md for the variables.
set -eu
: "${SALE:?the sale\'s id}" "${TOKEN:?the buyer\'s bearer token}"
URL=${URL:-http://127.0.0.1:8080}
KEY=${KEY:-$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')}

work=$(mktemp -d)
reader=
trap '[ -z "$reader" ] || kill "$reader" 2>/dev/null; rm -rf "$work"' EXIT
mkfifo "$work/events"

# Sends a request; leaves the body in $work/body, and prints the status and two headers. 000 means no answer.
send() {
	curl -sS --max-time 20 -o "$work/body" -H "Authorization: Bearer $TOKEN" \
		-w '%{http_code} %header{retry-after}|%header{location}' "$@" || true
}
# Reads the events of the order until one decides it; leaves that order, or else the last one or a refusal, in $work/body.
follow() {
	curl -sS -N --max-time 60 -H "Authorization: Bearer $TOKEN" -D "$work/head" "$1/events" >"$work/events" &
	reader=$!
	while IFS= read -r line; do
		case $line in
		data:*) printf '%s\n' "${line#data: }" >"$work/body" ;;
		\{*) printf '%s\n' "$line" >"$work/body" ;; # no event: a refusal
		esac
		case $(field status) in '' | accepted) ;; *) break ;; esac
	done <"$work/events"
	kill "$reader" 2>/dev/null || true
	wait "$reader" 2>/dev/null || true
	reader=
	code=$(sed -nE '1s/^HTTP[^ ]* ([0-9]+).*/\1/p' "$work/head" 2>/dev/null || true)
	echo "${code:-000} |"
}
field() { sed -nE "s/.*\"$1\":\"?([a-z_]+)\"?[,}].*/\1/p" "$work/body" | head -n 1; }
finish() { cat "$work/body"; echo; exit "$1"; }

tries=0
location=
while [ "$tries" -lt 10 ]; do
	tries=$((tries + 1))
	: >"$work/body"
	if [ -z "$location" ]; then
		answer=$(send -X POST -H "Idempotency-Key: $KEY" "$URL/v1/sales/$SALE/orders")
	else
		answer=$(follow "$URL$location")
	fi
	code=${answer%% *} rest=${answer#* }
	case $code in
	200 | 201 | 202)
		location=${location:-${rest#*|}}
		case $(field status) in
		'' | accepted) continue ;;
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

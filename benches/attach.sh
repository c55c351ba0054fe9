#!/usr/bin/env bash
# Attaches to a redis-server under redis-benchmark with 200 counting probes. Measures how long that takes, how long the
# server is stopped, how much memory and how many threads it adds, and how the throughput changes. Prints figures;
# asserts nothing.
#
#   benches/attach.sh [REQUESTS]      REQUESTS of each run of the benchmark (300,000)
set -euo pipefail
cd "$(dirname "$0")/.."
requests="${1:-300000}"

cargo build --release --quiet --package hodo
hodo="${CARGO_TARGET_DIR:-$PWD/target}/release/hodo"
place="$(mktemp -d "${CARGO_TARGET_DIR:-$PWD/target}/bench.XXXXXX")"
redis="$(readlink -f "$(command -v redis-server)")"
tidy() {
    kill "$server" 2>/dev/null || true
    wait 2>/dev/null || true
    rm -rf "$place"
}
cd "$place"
redis-server --port 0 --unixsocket "$place/socket" --save '' --appendonly no >/dev/null &
server=$!
trap tidy EXIT
until [ -S socket ]; do sleep 0.05; done

# The first 200 functions that can be probed.
mapfile -t functions < <("$hodo" probe --list "$redis" --no-pager 2>/dev/null | grep -oE '[A-Za-z_][A-Za-z_0-9]*$' | sort -u | head -200)
if [ "${#functions[@]}" -lt 200 ]; then
    # There are no symbols, so use 200 instructions at addresses in the unwind tables.
    mapfile -t functions < <("$hodo" plan -v "$redis" 2>/dev/null | grep -oE '<[0-9a-f]+>' | sort -u | head -200)
fi
probes=()
for function in "${functions[@]}"; do
    case "$function" in
    '<'*) spot="0x$(tr -d '<>' <<<"$function")" ;;
    *) spot="$function" ;;
    esac
    probes+=(-e "p $redis:$spot count")
done
echo "${#probes[@]} probes are $((${#probes[@]} / 2)) definitions" >&2

status() { awk -v key="$1:" '$1 == key { print $2 }' "/proc/$server/status"; }
# Prints requests per second, and errors.
load() { redis-benchmark -s socket -q -t get -n "$requests" -P 1 -c 20 2>errors.txt | tr '\r' '\n' | awk '/requests per second/ { print $2 }' | tail -1; }
row() { printf '%-44s %14s\n' "$@"; }

before="$(load)"
rss="$(status VmRSS)"
threads="$(status Threads)"
redis-benchmark -s socket -q -t get -n $((requests * 4)) -c 20 >load.txt 2>&1 &
bench=$!
sleep 0.5
"$hodo" probe -v -p "$server" "${probes[@]}" >counts.txt 2>said.txt &
monitor=$!
until grep -q '^hodo: attached' said.txt || ! kill -0 "$monitor" 2>/dev/null; do sleep 0.05; done
cat said.txt
more="$(status VmRSS)"
row 'memory added, kB' "$((more - rss))"
row 'threads added' "$(($(status Threads) - threads))"
wait "$bench"
row 'failed requests' "$(grep -ciE 'error|refused|reset' load.txt || true)"
probed="$(load)"
kill -INT "$monitor"
wait "$monitor" || true
after="$(load)"
row 'requests a second before' "$before"
row 'with probes' "$probed"
row 'afterwards' "$after"
row 'throughput with probes' "$(awk -v a="$probed" -v b="$before" -v c="$after" 'BEGIN { printf "%.1f %%", 200 * a / (b + c) }')"
row 'hits' "$(awk '{ sum += $1 } END { print sum }' counts.txt)"

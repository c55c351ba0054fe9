#!/usr/bin/env bash
# Compares shares of self time: those that `perf record` samples in the untraced program, and those of `hodo report`,
# without the cost of recording and with it (--raw-times). Only functions of the program itself count; shares are in
# percent of these. Asserts nothing.
#
#   benches/times.sh [ROWS]      ROWS of each program (12)
#
# The machine should be idle: the clock of a recording runs on while the program waits for a processor.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/packages.sh
root=$PWD
rows="${1:-12}"

command -v perf >/dev/null || install_packages linux-perf
if [ -z "${HODO:-}" ]; then
    cargo build --release --quiet --package hodo
fi
hodo="${HODO:-${CARGO_TARGET_DIR:-$PWD/target}/release/hodo}"
# In memory, so that nothing waits for a disk.
place="$(mktemp -d -p /dev/shm hodo-times.XXXXXX)"
trap 'rm -rf "$place"' EXIT
cd "$place"

source_of() { # crate
    cargo metadata --quiet --format-version 1 --manifest-path "$root/benches/interpreters/Cargo.toml" |
        grep -o "\"manifest_path\":\"[^\"]*/$1-[0-9][^\"]*/Cargo.toml\"" | head -1 | cut -d'"' -f4 | xargs dirname
}
lua=$(source_of lua-src)/lua-5.4.7
gcc -O2 -o lua "$root/benches/interpreters/lua.c" -DLUA_USE_POSIX -I"$lua" "$lua"/*.c -lm
sqlite=$(source_of libsqlite3-sys)/sqlite3
gcc -O2 -o sqlite "$root/benches/interpreters/sqlite.c" -DSQLITE_THREADSAFE=0 -DSQLITE_OMIT_LOAD_EXTENSION \
    -I"$sqlite" "$sqlite/sqlite3.c" -lm
sql='with recursive t(i) as (select 1 union all select i+1 from t where i<400000) select count(*), sum(i) from t'

shares() { # program, its arguments…
    local program
    program=$(command -v "$1")
    for run in 1 2 3; do
        perf record --quiet -e cpu-clock:u -F 20000 -o "perf.$run" -- "$@" >/dev/null 2>&1
        perf script -i "perf.$run" --show-mmap-events -F event,ip 2>/dev/null || true
    done >samples
    "$hodo" record -d trace -- "$@" >/dev/null
    "$hodo" info -d trace --symbols >symbols
    "$hodo" report -d trace --format json >corrected
    "$hodo" report -d trace --format json --raw-times >raw
    "$hodo" info -d trace | grep 'cost of recording'
    python3 "$root/benches/times.py" "$(readlink -f "$program")" "$rows"
    rm -rf trace perf.*
}

echo "== lua"
shares ./lua "$root/benches/interpreters/work.lua"
echo "== lua, calls of its API"
shares ./lua "$root/benches/interpreters/api.lua"
echo "== sqlite"
shares ./sqlite "$sql"
echo "== perl"
shares perl "$root/benches/interpreters/work.pl"

#!/usr/bin/env bash
# Compares hodo, uftrace and the untraced program, side by side in one run on this machine. Prints ratios; asserts
# nothing. All times are CPU time, user and system together. Each is the minimum of several runs.
#
#   benches/run.sh [CALLS]      CALLS of a tiny function (10,000,000); the readers see twice as many records
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/packages.sh
root=$PWD
calls="${1:-10000000}"

command -v uftrace >/dev/null || install_packages uftrace || true
cargo build --release --quiet --package hodo
hodo="${CARGO_TARGET_DIR:-$PWD/target}/release/hodo"
place="$(mktemp -d "${CARGO_TARGET_DIR:-$PWD/target}/bench.XXXXXX")"
trap 'rm -rf "$place"' EXIT
gcc -O2 -o "$place/cpu" benches/cpu.c
gcc -O2 -o "$place/calls" benches/calls.c
gcc -O2 -pg -o "$place/calls-pg" benches/calls.c
cd "$place"

has() { command -v "$1" >/dev/null; }
row() { printf '%-46s %12s %12s %12s   %s\n' "$@"; }
divide() { awk -v a="$1" -v b="$2" 'BEGIN { if (a == "-" || b == "-" || b == 0) print "-"; else printf "%.2f", a / b }'; }
minus() { awk -v a="$1" -v b="$2" 'BEGIN { if (a == "-") print "-"; else printf "%.2f", a - b }'; }
# The minimum of three runs.
least() { for _ in 1 2 3; do "$@" 2>/dev/null; done | sort -g | head -1; }
cpu() { ./cpu "$@" | cut -d' ' -f1; }
wall() { ./cpu "$@" | cut -d' ' -f2; }
uftrace_or_nothing() { if has uftrace; then "$@"; else echo -; fi; }

echo "== one call and return of a tiny function, ns above the untraced call ($calls calls)"
bare=$(least ./calls "$calls")
bare_pg=$bare
row "" hodo uftrace ratio goal
call() { # name, hodo's options, uftrace's options, goal
    local ours theirs
    # shellcheck disable=SC2086
    ours=$(minus "$(least "$hodo" record -d trace $2 -- ./calls "$calls")" "$bare")
    # shellcheck disable=SC2086
    theirs=$(uftrace_or_nothing minus "$(least uftrace record -d utrace $3 ./calls-pg "$calls")" "$bare_pg")
    row "$1" "$ours" "$theirs" "$(divide "$ours" "$theirs")" "$4"
}
row "untraced, for itself" "$bare" "" "" ""
call "with timestamps" "" "" "ratio 0.25; 2 rdtsc + 8"
call "without timestamps (--no-time)" "--no-time" "" "8"
call "left out by -F other" "-F other" "-F other" "0"
call "left out by -N tiny" "-N tiny" "-N tiny" "0"
call "left out by -P other" "-P other" "-F other" "0"
call "called by what -N leaves out" "-N calls" "-N calls" ""
call "cut by -D 2" "-D 2" "-D 2" "8"
call "cut by -t 1s" "-t 1s" "-t 1s" "no bytes"

echo
echo "== bytes of data for a call and return"
"$hodo" record -d trace -- ./calls "$calls" >/dev/null
bytes() { divide "$(du -s --block-size=1 "$1" | cut -f1)" "$calls"; }
theirs=-
if has uftrace; then
    uftrace record -d utrace ./calls-pg "$calls" >/dev/null 2>&1
    theirs=$(bytes utrace)
fi
row "everything" "$(bytes trace)" "$theirs" "$(divide "$(bytes trace)" "$theirs")" "16"
"$hodo" record -d short -t 1s -- ./calls "$calls" >/dev/null
row "-t 1s" "$(bytes short)" "" "" "0"
rm -rf short

echo
echo "== reading that trace, million records a second (wall time, all cores)"
rate() { awk -v n="$calls" -v ms="$1" 'BEGIN { if (ms == "-") print "-"; else printf "%.2f", 2 * n / ms / 1e3 }'; }
for view in report graph replay; do
    ours=$(rate "$(wall 3 "$hodo" "$view" -d trace --no-pager)")
    theirs=$(rate "$(uftrace_or_nothing wall 1 uftrace "$view" -d utrace --no-pager)")
    case $view in replay) goal="ratio 4" ;; *) goal="ratio 10" ;; esac
    row "$view" "$ours" "$theirs" "$(divide "$ours" "$theirs")" "$goal"
done
rm -rf trace utrace

echo
echo "== starting: record -- /bin/true, ms above the bare run"
bare=$(cpu 20 /bin/true)
ours=$(minus "$(cpu 20 "$hodo" record -d trace -- /bin/true)" "$bare")
theirs=$(uftrace_or_nothing minus "$(cpu 20 uftrace record --force -d utrace /bin/true)" "$bare")
row "the program and its calls" "$ours" "$theirs" "$(divide "$ours" "$theirs")" "60 cold, 15 warm"
ours=$(minus "$(cpu 20 "$hodo" record -l -d trace -- /bin/true)" "$bare")
row "-l" "$ours" "" "" ""

echo
echo "== planning, MB of code a second (CPU)"
plan() {
    local file bytes
    file=$(readlink -f "$1")
    bytes=0
    while read -r _ _ _ _ size _ flags rest; do
        case "$flags $rest" in *E*) bytes=$((bytes + size)) ;; esac
    done < <(LC_ALL=C readelf -lW "$file" | grep '^ *LOAD')
    row "${file##*/}" "$(awk -v b="$bytes" -v ms="$(cpu 3 "$hodo" plan --json "$file")" 'BEGIN { printf "%.1f", b / ms / 1e3 }')" "" "" "100"
}
plan "$(gcc -print-prog-name=cc1)"
plan /lib/x86_64-linux-gnu/libc.so.6
plan "$(command -v bash)"
if has gdb; then plan "$(command -v gdb)"; fi

echo
echo "== slowdown of interpreters with every function traced (CPU of all, the recorder's included)"
# For uftrace, programs must be built specially; hodo takes them unchanged.
row "" hodo uftrace ratio goal
source_of() { # crate
    cargo metadata --quiet --format-version 1 --manifest-path "$root/benches/interpreters/Cargo.toml" |
        grep -o "\"manifest_path\":\"[^\"]*/$1-[0-9][^\"]*/Cargo.toml\"" | head -1 | cut -d'"' -f4 | xargs dirname
}
interpreter() { # name, its work, what to compile…
    local name=$1 work=$2 bare ours theirs
    shift 2
    gcc -O2 -o "$name" "$root/benches/interpreters/$name.c" "$@" -lm
    gcc -O2 -pg -o "$name-pg" "$root/benches/interpreters/$name.c" "$@" -lm
    bare=$(cpu 5 "./$name" "$work")
    ours=$(divide "$(cpu 3 "$hodo" record -d trace -- "./$name" "$work")" "$bare")
    theirs=$(divide "$(uftrace_or_nothing cpu 1 uftrace record -d utrace "./$name-pg" "$work")" "$bare")
    row "$name ($bare ms alone)" "$ours" "$theirs" "$(divide "$ours" "$theirs")" "ratio 0.25"
    rm -rf trace* utrace*
}
sql='with recursive t(i) as (select 1 union all select i+1 from t where i<1500000) select count(*), sum(i) from t'
lua=$(source_of lua-src)/lua-5.4.7
interpreter lua "$root/benches/interpreters/work.lua" -DLUA_USE_POSIX -I"$lua" "$lua"/*.c
sqlite=$(source_of libsqlite3-sys)/sqlite3
interpreter sqlite "$sql" -DSQLITE_THREADSAFE=0 -DSQLITE_OMIT_LOAD_EXTENSION -I"$sqlite" "$sqlite/sqlite3.c"

echo
echo "== slowdown of programs that nobody has prepared; uftrace -P . patches what it can"
row "" hodo "uftrace -P ." "calls seen" "by uftrace"
calls_of() { # command that shows them
    "$@" 2>/dev/null | awk 'NR > 2 { n += $(NF - 1) } END { printf "%d", n }'
}
program() { # name, library to trace inside (may be empty), command…
    local name=$1 inside=() bare ours theirs seen
    if [ -n "$2" ]; then
        inside=(-P ".@$2")
    fi
    shift 2
    bare=$(cpu 3 "$@")
    ours=$(divide "$(cpu 2 "$hodo" record -d trace "${inside[@]}" -- "$@")" "$bare")
    theirs=$(divide "$(uftrace_or_nothing cpu 1 uftrace record --force -P . "${inside[@]}" -d utrace "$@")" "$bare")
    seen=$(uftrace_or_nothing calls_of uftrace report --no-pager -d utrace)
    row "$name ($bare ms alone)" "$ours" "$theirs" "$(calls_of "$hodo" report --no-pager -d trace)" "$seen"
    rm -rf trace* utrace*
}
if has sqlite3; then program sqlite3 libsqlite3.so.0 sqlite3 :memory: "$sql"; fi
if has lua5.4; then program lua "" lua5.4 "$root/benches/interpreters/work.lua"; fi
program bash "" bash -c 'for ((i = 0; i < 150000; i++)); do x=$((x + i)); done; echo $x'

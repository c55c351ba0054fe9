#!/usr/bin/env bash
# Compares programs under the instrumentation engine with the programs alone, and with valgrind's tools if valgrind is
# installed, in one run on this machine. Prints CPU time (user and system, the program and the tool together) as
# ratios to the program alone; asserts nothing. "only" is `record --only main`. The last columns say how large a
# recording is and how many of its accesses a second of CPU time reads (`stat -d`, `opcodes -d`, `cache -d`). From the
# third round on, `none` and `stat` use translations that the rounds before have kept.
#
#   benches/mem.sh [ROUNDS]      the best of ROUNDS (3) counts
#   PROGRAMS="gzip lua" benches/mem.sh
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${1:-3}
cargo build --release --quiet
hodo=$PWD/target/release/hodo
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Input that is the same everywhere: the text of numbers.
seq 700000 > "$work/text"
cat > "$work/threads.c" <<'C'
#include <pthread.h>
#include <stdio.h>
static void *work(void *at) { for (long i = 0; i < 20000000; i++) *(volatile long *)at += i; return 0; }
int main(void) { static long a[64]; pthread_t t[2]; for (int i = 0; i < 2; i++) pthread_create(&t[i], 0, work, a + 32 * i);
    for (int i = 0; i < 2; i++) pthread_join(t[i], 0); printf("%ld\n", a[0] + a[32]); }
C
gcc -O1 -pthread -o "$work/threads" "$work/threads.c"
query='with recursive t(i) as (select 1 union all select i + 1 from t where i < 300000) select sum(i * i % 7) from t'
loop='local s = 0 for i = 1, 3000000 do s = s + i % 7 end print(s)'
declare -A command=(
    [true]="/bin/true"
    [gzip]="gzip -c $work/text"
    [bzip2]="bzip2 -c $work/text"
    [xz]="xz -1 -c $work/text"
    [sqlite3]="sqlite3|:memory:|$query"
    [python3]="/usr/bin/python3|-c|print(sum(i * i for i in range(500000)))"
    [perl]="perl|-e|my %h; \$h{\$_ % 1000} += \$_ for 1 .. 500000; print scalar keys %h"
    [lua]="lua5.4|-e|$loop"
    [cc1]="gcc|-O1|-S|-o|/dev/null|$work/threads.c"
    [threads]="$work/threads"
)

# CPU seconds of a command; nothing if it fails.
cpu() {
    local best='' i
    for ((i = 0; i < rounds; i++)); do
        if /usr/bin/env bash -c 'TIMEFORMAT="%U %S"; { time "$@" > /dev/null 2> "$0.err"; } 2> "$0"' \
            "$work/time" "$@"; then
            local now
            now=$(awk 'END { print $1 + $2 }' "$work/time")
            best=$(awk -v a="${best:-1e9}" -v b="$now" 'BEGIN { print (b < a ? b : a) }')
        fi
    done
    echo "$best"
}

ratio() {
    if [ -n "$1" ]; then awk -v a="$1" -v b="$2" 'BEGIN { printf "%9.2f", a / (b > 0.001 ? b : 0.001) }'; else printf '%9s' -; fi
}

tools=(none stat only record cache)
peers=()
if command -v valgrind > /dev/null; then peers=(none cachegrind); fi
printf '%-9s %8s' program 'alone s'
for tool in "${tools[@]}"; do printf '%9s' "$tool"; done
for peer in "${peers[@]}"; do printf '%9s' "vg:${peer:0:6}"; done
echo
for name in ${PROGRAMS:-true gzip bzip2 xz sqlite3 python3 perl lua cc1 threads}; do
    IFS='|' read -ra words <<< "${command[$name]}"
    if [ ${#words[@]} -eq 1 ]; then read -ra words <<< "${command[$name]}"; fi
    if ! command -v "${words[0]}" > /dev/null; then
        echo "$name: not installed"
        continue
    fi
    alone=$(cpu "${words[@]}")
    printf '%-9s %8s' "$name" "$alone"
    for tool in "${tools[@]}"; do
        options=()
        [ "$tool" = record ] && options=(-d "$work/recording")
        [ "$tool" = only ] && options=(--only main -d "$work/some")
        [ "$tool" = cache ] && options=(-o "$work/result")
        ratio "$(cpu "$hodo" mem "${tool/only/record}" "${options[@]}" -- "${words[@]}")" "$alone"
    done
    for peer in "${peers[@]}"; do
        options=(--tool="$peer")
        [ "$peer" = cachegrind ] && options+=(--cache-sim=yes --cachegrind-out-file="$work/out")
        ratio "$(cpu valgrind "${options[@]}" "${words[@]}")" "$alone"
    done
    size=$(stat -c %s "$work/recording/accesses.hodomem" 2> /dev/null || echo 0)
    accesses=$("$hodo" mem stat --format json -o "$work/counts" -- "${words[@]}" > /dev/null 2>&1 &&
        grep -o '"\(loads\|stores\)":[0-9]*' "$work/counts" | awk -F: '{ sum += $2 } END { print sum }')
    reading=()
    for tool in stat opcodes cache; do
        reading+=("$(cpu "$hodo" mem "$tool" -d "$work/recording" -o "$work/counts")")
    done
    awk -v size="$size" -v accesses="${accesses:-0}" -v seconds="${reading[*]}" 'BEGIN {
        count = split(seconds, each, " ")
        for (i in each) if (each[i] < 0.001) each[i] = 0.001
        if (accesses > 0 && count == 3) printf "   %.2f bytes, %.0f %.0f %.0f M/s", size / accesses,
            accesses / each[1] / 1e6, accesses / each[2] / 1e6, accesses / each[3] / 1e6
        print ""
    }'
    rm -rf "$work/recording" "$work/some"
done

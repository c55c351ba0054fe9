#!/usr/bin/env bash
# Measures what gathers cost: a loop of gathers of AVX2 whose indices are computed in vectors, alone, under the tools of
# `hodo mem`, and with each lane made an access of its own (the example `expand` of hodo-dbi), without and with code that
# counts each of these. Prints CPU time (user and system, the program and the tool together) as ratios to the program
# alone, and the nanoseconds of a gather: the CPU time of one more. Asserts nothing.
#
#   benches/gathers.sh [COUNT] [ROUNDS]     COUNT gathers (10000000); the best of ROUNDS (3) counts
#
# A recording of 10 million gathers needs 250 MB in the directory for temporary files, for a short time.
set -euo pipefail
cd "$(dirname "$0")/.."
count=${1:-10000000}
rounds=${2:-3}
if ! grep -qw avx2 /proc/cpuinfo; then
    echo "the processor has no AVX2"
    exit
fi
cargo build --release --quiet --package hodo
cargo build --release --quiet --package hodo-dbi --example expand
target=${CARGO_TARGET_DIR:-$PWD/target}/release
hodo=$target/hodo
expand=$target/examples/expand
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
gcc -O2 -w -o "$work/gathers" crates/hodo-tests/programs/many_gathers.c

# The best CPU seconds of a command; nothing if it fails.
cpu() {
    local best='' i
    for ((i = 0; i < rounds; i++)); do
        if /usr/bin/env bash -c 'TIMEFORMAT="%U %S"; { time "$@" > "$0.out" 2> "$0.err"; } 2> "$0"' \
            "$work/time" "$@"; then
            local now
            now=$(awk 'END { print $1 + $2 }' "$work/time")
            best=$(awk -v a="${best:-1e9}" -v b="$now" 'BEGIN { print (b < a ? b : a) }')
        fi
        rm -rf "$work/recording"
    done
    echo "$best"
}

# Prints a row: the CPU seconds, the ratio to the first row of its table, and the nanoseconds of one more gather.
alone=''
row() {
    local name=$1 lanes=$2
    shift 2
    local many few
    many=$(cpu "$@" "$work/gathers" "$count" "$lanes")
    few=$(cpu "$@" "$work/gathers" 0 "$lanes")
    alone=${alone:-$many}
    awk -v name="$name" -v many="${many:-0}" -v few="${few:-0}" -v alone="$alone" -v count="$count" 'BEGIN {
        if (many == 0) printf "%-26s failed\n", name
        else printf "%-26s %8.3f %8.2f %8.2f\n", name, many, many / (alone > 0.001 ? alone : 0.001),
            1e9 * (many - few) / count
    }'
}

for lanes in all some; do
    echo "$count gathers of eight lanes, $lanes of them active"
    printf '%-26s %8s %8s %8s\n' '' 'CPU s' ratio 'ns each'
    alone=''
    row alone "$lanes"
    row 'hodo mem none' "$lanes" "$hodo" mem none --
    row 'hodo mem stat' "$lanes" "$hodo" mem stat -o "$work/result" --
    row 'hodo mem record' "$lanes" "$hodo" mem record -d "$work/recording" --
    row 'expanded' "$lanes" "$expand" --uncounted
    row 'expanded and counted' "$lanes" "$expand"
done

# Sorting indices uses gathers if numpy has such code for the processor.
if ! /usr/bin/python3 -c 'import numpy' 2> /dev/null; then
    echo "numpy is not installed"
    exit
fi
script='import numpy as np
a = np.random.default_rng(1).random(2000000)
i = np.argsort(a)
print(int(i[0]), float(np.take(a, i).sum()), float(np.exp(a).sum()))'
echo "numpy: argsort, take and exp of 2 million numbers"
printf '%-26s %8s %8s\n' '' 'CPU s' ratio
alone=''
numpy() {
    local name=$1 seconds
    shift
    seconds=$(cpu "$@" /usr/bin/python3 -c "$script")
    alone=${alone:-$seconds}
    awk -v name="$name" -v a="${seconds:-0}" -v b="$alone" 'BEGIN {
        if (a == 0) printf "%-26s failed\n", name
        else printf "%-26s %8.3f %8.2f\n", name, a, a / b
    }'
}
numpy alone
numpy 'hodo mem none' "$hodo" mem none --
numpy 'hodo mem stat' "$hodo" mem stat -o "$work/result" --
numpy 'hodo mem record' "$hodo" mem record -d "$work/recording" --
numpy 'expanded' "$expand" --uncounted
numpy 'expanded and counted' "$expand"

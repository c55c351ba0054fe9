#!/usr/bin/env bash
# Compares probes of hodo, of the kernel (uprobes through tracefs, as root) and of Frida (from PyPI) with no probe, side
# by side in one run on this machine. Prints ratios; asserts nothing.
#
#   benches/probe.sh [CALLS]      CALLS of a tiny function (10,000,000; the kernel gets a hundredth)
set -euo pipefail
cd "$(dirname "$0")/.."
calls="${1:-10000000}"

cargo build --release --quiet --package hodo
hodo="${CARGO_TARGET_DIR:-$PWD/target}/release/hodo"
place="$(mktemp -d "${CARGO_TARGET_DIR:-$PWD/target}/bench.XXXXXX")"
tracing=/sys/kernel/tracing
tidy() {
    echo 0 >"$tracing/events/hodo_bench/enable" 2>/dev/null || true
    echo '-:hodo_bench/tiny' >>"$tracing/uprobe_events" 2>/dev/null || true
    rm -rf "$place"
}
trap tidy EXIT
gcc -O2 -o "$place/cpu" benches/cpu.c
gcc -O2 -o "$place/calls" benches/calls.c
file="$place/calls"
cd "$place"

row() { printf '%-52s %12s   %s\n' "$@"; }
minus() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.2f", a - b }'; }
divide() { awk -v a="$1" -v b="$2" 'BEGIN { if (b == 0) print "-"; else printf "%.1f", a / b }'; }
# The first line is the program's output: CPU nanoseconds per call.
least() { for _ in 1 2 3; do "$@" 2>/dev/null | head -1; done | sort -g | head -1; }
cpu() { ./cpu "$@" | cut -d' ' -f1; }

echo "== one hit, ns above the call without probe ($calls calls)"
bare=$(least ./calls "$calls")
row "no probe, for itself" "$bare" ""
count=$(minus "$(least "$hodo" probe -e "$file:tiny count" -- ./calls "$calls")" "$bare")
row "count at a function's entry" "$count" "goal 3"
both=$(minus "$(least "$hodo" probe -e "$file:tiny+* count" -- ./calls "$calls")" "$bare")
row "count at both of its instructions" "$both" ""
row "count its returns" "$(minus "$(least "$hodo" probe --no-time -e "r $file:tiny count" -- ./calls "$calls")" "$bare")" "goal 10"
false=$(minus "$(least "$hodo" probe -e "$file:tiny n=%di if n == -1 count" -- ./calls "$calls")" "$bare")
row "count under a false condition" "$false" "$(minus "$false" "$count") above a count; goal 4"
row "count under a true condition" \
    "$(minus "$(least "$hodo" probe -e "$file:tiny n=%di if n != -1 count" -- ./calls "$calls")" "$bare")" ""
row "histogram of a register's highest bits, with a sum" \
    "$(minus "$(least "$hodo" probe -e "$file:tiny n=%di hist:keys=n.log2:vals=n" -- ./calls "$calls")" "$bare")" ""
row "event with two registers and the time" \
    "$(minus "$(least "$hodo" probe -d trace -e "$file:tiny %di %si" -- ./calls "$((calls / 10))")" "$bare")" "goal rdtsc + 6"
gcc -O1 -fno-optimize-sibling-calls -o stacks "$OLDPWD/benches/stacks.c"
# The results are not read, so this is the time of recording only.
traced() {
    { time -p "$hodo" record -d stacks.data -P '^nothing$' -e "$PWD/stacks:leaf stacktrace" ./stacks "$1" >/dev/null 2>&1; } 2>&1 |
        awk '/^(user|sys)/ { sum += $2 } END { printf "%.0f", sum * 1e9 }'
}
hits=$((calls / 50))
row "event with a stack trace of 20 frames, user and system" "$(minus "$(traced "$hits")" "$(traced 1)" | awk -v n="$hits" '{ printf "%.0f", $1 / n }')" "goal 1000"
if [ -w "$tracing/uprobe_events" ]; then
    offset=$(nm "$file" | awk '$3 == "tiny" { print "0x" $1 }')
    # The program's code has the same offset in its file as in memory.
    if echo "p:hodo_bench/tiny $file:$offset" >>"$tracing/uprobe_events" 2>/dev/null; then
        echo 1 >"$tracing/events/hodo_bench/enable"
        kernel=$(minus "$(least ./calls "$((calls / 100))")" "$bare")
        echo 0 >"$tracing/events/hodo_bench/enable"
        row "a uprobe of the kernel, at the same place" "$kernel" "$(divide "$kernel" "$count") times count"
    fi
else
    echo "the kernel's uprobes need root and tracefs: left out"
fi
if python3 -m venv frida >/dev/null 2>&1 && frida/bin/pip install --quiet frida >/dev/null 2>&1; then
    offset=$(nm "$file" | awk '$3 == "tiny" { print "0x" $1 }')
    frida=$(minus "$(least frida/bin/python "$OLDPWD/benches/frida_calls.py" "$file" "$offset" "$((calls / 10))")" "$bare")
    row "a callback of Frida's, in C, at the same place" "$frida" "$(divide "$frida" "$count") times count"
else
    echo "Frida cannot be installed (python3-venv, pip): left out"
fi

echo
echo "== every instruction of bash counted (CPU of all)"
work='for ((i = 0; i < 150000; i++)); do x=$((x + i)); done; echo $x'
bare=$(cpu 3 bash -c "$work")
start=$(cpu 3 "$hodo" probe -d trace -e "$(command -v bash):*+* count" -- bash -c true)
all=$(cpu 2 "$hodo" probe -d trace -e "$(command -v bash):*+* count" -- bash -c "$work")
row "its time, with the start ($bare ms alone)" "$all ms" "$(divide "$all" "$bare") times"
row "without the start" "$(minus "$all" "$start") ms" "$(divide "$(minus "$all" "$start")" "$bare") times; goal 8"
row "the start" "$start ms" "goal 1000"

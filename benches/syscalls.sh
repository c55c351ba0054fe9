#!/usr/bin/env bash
# Compares the system calls of dd alone, under hodo syscalls, with events of system calls, and under strace -f, side by
# side in one run on this machine. Prints ratios; asserts nothing.
#
#   benches/syscalls.sh [CALLS]   pairs of a read and a write (1,000,000; strace gets a tenth)
set -euo pipefail
cd "$(dirname "$0")/.."
calls="${1:-1000000}"

cargo build --release --quiet --package hodo
hodo="${CARGO_TARGET_DIR:-$PWD/target}/release/hodo"
place="$(mktemp -d "${CARGO_TARGET_DIR:-$PWD/target}/bench.XXXXXX")"
trap 'rm -rf "$place"' EXIT
cd "$place"

row() { printf '%-52s %12s   %s\n' "$@"; }
calc() { awk "BEGIN { printf \"%.$1f\", $2 }"; }
copy() { dd if=/dev/zero of=/dev/null bs=1 count="$1" status=none; }
# Seconds from start to end, the minimum of three runs.
least() {
    for _ in 1 2 3; do
        local from=$EPOCHREALTIME
        "$@" >/dev/null 2>&1
        calc 6 "$EPOCHREALTIME - $from"
        echo
    done | sort -g | head -1
}
under() { "$@" dd if=/dev/zero of=/dev/null bs=1 count="$pairs" status=none; }

pairs=$calls
alone=$(least copy "$calls")
row "dd, $calls pairs, alone" "$alone s" ""
cost() { calc 1 "($1 - $alone) * 1e9 / 2 / $calls"; }
# dd itself reports the time while it runs. The rest is hodo's start and the writing of lines.
recorded() { under "$hodo" syscalls -d trace -o /dev/null "$@" --; }
full=$(least recorded)
row "hodo syscalls, with all lines written" "$full s" "$(cost "$full") ns a call"
summary=$(least recorded -c)
row "hodo syscalls -c" "$summary s" "$(cost "$summary") ns a call"
filtered=$(least recorded -e openat)
row "hodo syscalls -e openat" "$filtered s" "$(cost "$filtered") ns a call"
# Events of system calls: no lines are written for calls that do not match.
events() { under "$hodo" probe -d trace -o /dev/null "$@" --; }
hist=$(least events -e 'syscalls:sys_exit_read hist:keys=fd:vals=ret')
row "hodo probe, histogram at sys_exit_read" "$hist s" "$(cost "$hist") ns a call"
condition=$(least events -e 'syscalls:sys_enter_write if count > 1')
row "hodo probe, sys_enter_write with a condition" "$condition s" "$(cost "$condition") ns a call"
all=$(least events -e 'syscalls:sys_enter_* count')
row "hodo probe, all calls counted" "$all s" "$(cost "$all") ns a call"
row "program under these, in times of the program alone" \
    "$(calc 2 "$hist / $alone") $(calc 2 "$condition / $alone") $(calc 2 "$all / $alone") x" ""
if command -v strace >/dev/null; then
    pairs=$((calls / 10))
    few=$(least copy "$pairs")
    traced=$(least under strace -f -o /dev/null)
    strace=$(calc 1 "($traced - $few) * 1e9 / 2 / $pairs")
    row "strace -f, $pairs pairs" "$traced s" "$strace ns a call"
    # The least that strace does at each call: it writes none of these lines, but looks at the arguments.
    summed=$(least under strace -f -c -o /dev/null)
    counted=$(calc 1 "($summed - $few) * 1e9 / 2 / $pairs")
    row "strace -f -c, $pairs pairs" "$summed s" "$counted ns a call"
    row "overhead of strace -c over that of counting all events" \
        "$(calc 1 "$counted / (($all - $alone) * 1e9 / 2 / $calls)") x" ""
    row "overhead of strace over that of hodo" \
        "$(calc 1 "$strace / (($full - $alone) * 1e9 / 2 / $calls)") x" "goal 20"
else
    row "strace" "-" "not installed"
fi

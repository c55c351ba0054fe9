#!/usr/bin/env bash
# What a hit of a probe costs by the way in which the probed instruction is executed, beside the kernel's figures for
# kprobes (Documentation/trace/kprobes.rst, "Probe Overhead": a Core 2 at 3.16 GHz; single step 0.99 us, boosted 0.43 us,
# optimized 0.06 us). Ours: hodo-probe's engine in one's own process, and `hodo probe`, on this machine; and on RISC-V the
# instructions that the program executes (qemu's user mode emulator; the kernel's part of a signal is not counted).
# Prints a table; fails if a hit was not counted.
#
#   benches/kprobes.sh
set -euo pipefail
cd "$(dirname "$0")/.."
target="${CARGO_TARGET_DIR:-$PWD/target}"
cargo build --quiet --release -p hodo
cargo build --quiet --release -p hodo-probe --example engine-speed
hodo="$target/release/hodo"
place="$(mktemp -d "$target/bench.XXXXXX")"
trap 'rm -rf "$place"' EXIT
gcc -O2 -o "$place/calls" benches/calls.c

"$target/release/examples/engine-speed" >"$place/engine"
# Nanoseconds of a row of the engine's program.
engine() { awk -v name="$1" 'index($0, name) == 1 { print $(NF - 2) }' "$place/engine"; }

# CPU nanoseconds per call of a function, as the program itself measures them.
least() { for _ in 1 2 3; do "$@" 2>/dev/null | head -1; done | sort -g | head -1; }
# Nanoseconds of a hit of `hodo probe`: options, calls. All hits must have been counted.
hodo_probe() {
    local bare with calls="${*: -1}"
    bare=$(least "$place/calls" "$calls")
    with=$(least "$hodo" probe -d "$place/trace" "${@:1:$#-1}" -e "$place/calls:tiny count" -- "$place/calls" "$calls")
    "$hodo" probe -d "$place/trace" "${@:1:$#-1}" -e "$place/calls:tiny count" -o "$place/counts" -- "$place/calls" "$calls" >/dev/null
    awk -v calls="$calls" '$1 >= calls { found = 1 } END { exit !found }' "$place/counts" || {
        echo "benches/kprobes.sh: not all hits were counted: $(cat "$place/counts")" >&2
        return 1
    }
    awk -v a="$with" -v b="$bare" 'BEGIN { printf "%.1f", a - b }'
}

triple=riscv64gc-unknown-linux-gnu
riscv64() { echo -; }
if command -v qemu-riscv64 >/dev/null && command -v riscv64-linux-gnu-gcc >/dev/null; then
    export CARGO_TARGET_RISCV64GC_UNKNOWN_LINUX_GNU_LINKER=riscv64-linux-gnu-gcc
    cargo build --quiet --release --target "$triple" -p hodo-probe --example events
    events="$target/$triple/release/examples/events"
    plugin="$place/libcount.so"
    emulate=(qemu-riscv64 -L /usr/riscv64-linux-gnu -plugin "$plugin")
    # The version of the plugin interface of this qemu.
    for version in 1 2 3 4 5 none; do
        [ "$version" != none ] || { echo "benches/kprobes.sh: this qemu takes no plugin" >&2; exit 1; }
        gcc -O2 -shared -fPIC "-DVERSION=$version" benches/riscv64-count.c -o "$plugin"
        ! "${emulate[@]}" "$events" plain 0 >/dev/null 2>&1 || break
    done
    executed() { "${emulate[@]}" "$@" 2>&1 >/dev/null | sed -n 's/ instructions$//p' | tail -n1; }
    # Instructions per call; the difference of two runs has none of the start and the end.
    per_call() { echo $((($(executed "$events" "$1" 2000) - $(executed "$events" "$1" 1000)) / 1000)); }
    alone=$(per_call alone)
    riscv64() { echo $(($(per_call "$1") - alone)); }
else
    echo "skipped: RISC-V, because there is no qemu-riscv64 or no riscv64-linux-gnu-gcc" >&2
fi

row() { printf '%-34s %12s %16s %14s %16s\n' "$@"; }
echo "$(date -I), $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1), Linux $(uname -r)"
row "a hit" "kernel, ns" "engine, ns" "hodo probe, ns" "RISC-V, insns"
row "breakpoint, single step / copy" 990 "$(engine 'breakpoint, out of line')" - "$(riscv64 out-of-line)"
row "breakpoint, boosted" 430 "$(engine 'breakpoint, boosted')" "$(hodo_probe --no-optimize 20000)" "$(riscv64 boosted)"
row "optimized: a jump to a detour" 60 "$(engine 'handler, no vector state')" "$(hodo_probe 10000000)" "$(riscv64 handler)"

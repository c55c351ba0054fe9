#!/usr/bin/env bash
# How many instructions hodo-ftrace adds to a call, for machines that are only emulated here: time in an emulator says
# nothing. Counts what qemu's user mode emulator executes. Needs qemu-user and the compiler for the machine.
#
#   benches/ftrace-instructions.sh riscv64|aarch64
set -euo pipefail
cd "$(dirname "$0")/.."
case "${1:-}" in
riscv64) machine=riscv64 triple=riscv64gc-unknown-linux-gnu room=4 ;;
aarch64) machine=aarch64 triple=aarch64-unknown-linux-gnu room=2 ;;
*) echo "riscv64 or aarch64, not '${1:-}'" >&2; exit 2 ;;
esac
target="${CARGO_TARGET_DIR:-$PWD/target}"
name="${triple^^}"
env "CARGO_TARGET_${name//-/_}_LINKER=$machine-linux-gnu-gcc" \
    cargo build --quiet --release --package hodo-ftrace-c --lib --target "$triple"
directory="$(mktemp -d)"
trap 'rm -rf "$directory"' EXIT
flags=(-O2 -fno-omit-frame-pointer -fno-tree-vectorize -fno-tree-slp-vectorize -Icrates/hodo-ftrace-c/include benches/ftrace.c)
library="$target/$triple/release"
"$machine-linux-gnu-gcc" "${flags[@]}" -o "$directory/plain"
# A program has many functions.
awk 'BEGIN { for (i = 0; i < 100; i++) printf "long many_%d(long a) { return a + %d; }\n", i, i }' > "$directory/many.c"
# Without its symbols, the library starts with fewer instructions.
"$machine-linux-gnu-strip" -o "$directory/libhodo_ftrace.so" "$library/libhodo_ftrace.so"
hooks=(-DHOOKS "$directory/many.c" "$directory/libhodo_ftrace.so" "-Wl,-z,now,-rpath,$directory")
"$machine-linux-gnu-gcc" "${flags[@]}" -pg "${hooks[@]}" -o "$directory/ours"
"$machine-linux-gnu-gcc" "${flags[@]}" "-fpatchable-function-entry=$room" -fno-ipa-ra "${hooks[@]}" -o "$directory/room"

# Each instruction is a block of its own, and each block that is executed is a line.
executed() {
    (cd "$directory" && "qemu-$machine" -L "/usr/$machine-linux-gnu" -singlestep -d exec,nochain -D /dev/stderr "$@" 2>&1 >/dev/null | grep -c '^Trace')
}
plain=
row() { # name, program, mode
    local calls=1000 with without
    with="$(executed "$directory/$2" "$3" "$calls")"
    without="$(executed "$directory/$2" "$3" 0)"
    awk -v name="$1" -v count="$(((with - without) / calls))" -v plain="${plain:=$(((with - without) / calls))}" \
        'BEGIN { printf "%-58s %6d instructions  %+6d\n", name, count, count - plain }'
}
row "call" plain 0
row "-pg: nobody listens" ours 0
row "-pg: entry hook" ours 1
row "-pg: entry and return hooks" ours 2
row "room at the entry: nobody listens" room 0
row "room at the entry: entry hook" room 1
row "room at the entry: entry and return hooks" room 2

#!/usr/bin/env bash
# How many RISC-V instructions each event takes: static keys and probes in one's own process, under qemu's user mode emulator with a
# plugin that counts. An emulator is no clock, but it counts exactly. Prints a table; asserts nothing. What stubs take that
# `hodo record` emits is counted by the tests of hodo-arch.
#
#   benches/riscv64.sh
set -euo pipefail
cd "$(dirname "$0")/.."
triple=riscv64gc-unknown-linux-gnu
target="${CARGO_TARGET_DIR:-$PWD/target}"
export CARGO_TARGET_RISCV64GC_UNKNOWN_LINUX_GNU_LINKER=riscv64-linux-gnu-gcc
cargo build --quiet --release --target "$triple" -p hodo-probe --example events
events="$target/$triple/release/examples/events"
plugin="$target/riscv64-linux/libcount.so"
mkdir -p "${plugin%/*}"
emulate=(qemu-riscv64 -L /usr/riscv64-linux-gnu -plugin "$plugin")

# The interface's version is that of this qemu.
for version in 1 2 3 4 5 none; do
    [ "$version" != none ] || { echo "this qemu takes no plugin: $("${emulate[@]}" "$events" plain 0 2>&1)" >&2; exit 1; }
    gcc -O2 -shared -fPIC "-DVERSION=$version" benches/riscv64-count.c -o "$plugin"
    ! "${emulate[@]}" "$events" plain 0 >/dev/null 2>&1 || break
done

calls=1000
executed() { "${emulate[@]}" "$events" "$1" "$2" 2>&1 >"$target/riscv64-linux/way" | sed -n 's/ instructions$//p' | tail -n1; }
# Instructions of one call: what starting and ending takes is in both.
each() { echo $((($(executed "$1" $((2 * calls))) - $(executed "$1" "$calls")) / calls)); }
row() { # name, kind, what is to be taken off, goal
    local instructions way=
    instructions=$(($(each "$2") - $3))
    [ "$2" = key ] || way="$(cat "$target/riscv64-linux/way")"
    printf '%-44s %6d   %-10s %s\n' "$1" "$instructions" "$4" "$way"
}

plain=$(each plain)
alone=$(each alone)
echo "== RISC-V instructions above those of the same call without it"
row "a branch on a disabled static key" key "$plain" "goal 1"
row "counting probe" count "$alone" "goal 12"
row "probe with an empty C handler" handler "$alone" ""
row "return probe with an empty C handler" return "$alone" ""

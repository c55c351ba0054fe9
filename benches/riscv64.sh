#!/usr/bin/env bash
# Counts RISC-V instructions per event: static keys, probes in one's own process, and calls of traced functions for each
# form of a site. It uses qemu's user mode emulator with a plugin that counts. An emulator does not measure time, but it
# counts exactly. Prints tables; asserts nothing.
#
#   benches/riscv64.sh
set -euo pipefail
cd "$(dirname "$0")/.."
triple=riscv64gc-unknown-linux-gnu
target="${CARGO_TARGET_DIR:-$PWD/target}"
export CARGO_TARGET_RISCV64GC_UNKNOWN_LINUX_GNU_LINKER=riscv64-linux-gnu-gcc
cargo build --quiet --release --target "$triple" -p hodo-probe --example events
cargo build --quiet --release --target "$triple" -p hodo-patch --example forms
events="$target/$triple/release/examples/events"
forms="$target/$triple/release/examples/forms"
plugin="$target/riscv64-linux/libcount.so"
mkdir -p "${plugin%/*}"
emulate=(qemu-riscv64 -L /usr/riscv64-linux-gnu -plugin "$plugin")

# The version of the plugin interface of this qemu.
for version in 1 2 3 4 5 none; do
    [ "$version" != none ] || { echo "this qemu takes no plugin: $("${emulate[@]}" "$events" plain 0 2>&1)" >&2; exit 1; }
    gcc -O2 -shared -fPIC "-DVERSION=$version" benches/riscv64-count.c -o "$plugin"
    ! "${emulate[@]}" "$events" plain 0 >/dev/null 2>&1 || break
done

calls=1000
# The last argument is the number of calls.
executed() { "${emulate[@]}" "$@" 2>&1 >"$target/riscv64-linux/way" | sed -n 's/ instructions$//p' | tail -n1; }
# Instructions per call. Subtracting two runs removes the cost of starting and ending.
per_call() { echo $((($(executed "$@" $((2 * calls))) - $(executed "$@" "$calls")) / calls)); }
each() { per_call "$events" "$1"; }
row() { # name, kind, what to subtract, goal
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

echo
echo "== RISC-V: entry and exit of a traced function, in each form of its site. Instructions of a call without it, and above that; of these, the"
echo "== record alone (without rdtime and the ways to the stub and back), whose goal is 40; bytes of code at the site and of the stub"
printf '%-52s %9s %9s %9s %9s %9s\n' "" untraced above record site stub
form() { # name, kind, timed or untimed
    local untraced traced bytes stub ways reads=2
    [ "$3" = timed ] || reads=0
    untraced=$(per_call "$forms" "$2-untraced" "$3")
    traced=$(per_call "$forms" "$2" "$3")
    read -r bytes stub ways <"$target/riscv64-linux/way"
    printf '%-52s %9d %9d %9d %9d %9d\n' "$1" "$untraced" $((traced - untraced)) \
        $((traced - untraced - ways - reads)) "$bytes" "$stub"
}
form "A: 16 bytes of nops, no register is free" A timed
form "A, registers are free (B is taken then)" A-free timed
form "B: 8 bytes of nops, temporaries are free" B timed
form "B, only that of the jump is free" B-few timed
form "C: 24 bytes, no island in reach, temporaries are free" C timed
form "not prepared, temporaries are free" free timed
form "not prepared, no register is free" kept timed
form "hop, temporaries are free" hop-free timed
form "hop, no register is free" hop-kept timed
form "A without times" A untimed
form "B without times" B untimed

#!/usr/bin/env bash
# What a check costs: a nop, a jump, a branch, a load and a branch, with and without a cache miss. As CPU time in one run
# on this machine, which may be x86-64, RISC-V or AArch64; for RISC-V and AArch64, also as instructions that qemu's user
# mode emulator counts, and as cycles of a model. Prints tables; asserts nothing.
#
#   benches/jump_labels.sh [ROUNDS]      ROUNDS interleaved rounds of each (21)
#
# The model is a processor that begins one instruction in each cycle, in order. The environment changes its parameters,
# in cycles: JUMP (1) is what a jump that is taken, and predicted, loses; USE (2) how long an instruction waits for what
# the one before it loads from the nearest cache; MISPREDICT (8) what a wrong prediction loses; MISS (60) how long a line
# that another processor has written takes.
set -euo pipefail
cd "$(dirname "$0")/.."
out="${CARGO_TARGET_DIR:-$PWD/target}/jump-labels"
mkdir -p "$out"
flags=(-O2 -Wall -Wextra -Werror -pthread benches/jump_labels.c)

machine="$(uname -m)"
gcc "${flags[@]}" -o "$out/native"
# What the kernel calls the processor, or at least what it has.
processor="$(sed -n -E 's/^(model name|uarch|CPU part|isa)[[:space:]]*: //p' /proc/cpuinfo | head -n 1)"
echo "== $machine, ${processor:-unknown processor}: ${1:-21} interleaved rounds"
"$out/native" "${1:-21}"

loops=1000
for arch in riscv64 aarch64; do
    echo
    # A machine's own compiler may have no other name.
    compiler="$arch-linux-gnu-gcc"
    [ "$machine" != "$arch" ] || command -v "$compiler" >/dev/null || compiler=gcc
    for tool in "$compiler" "qemu-$arch"; do
        command -v "$tool" >/dev/null || { echo "== $arch: not counted, $tool is not installed"; continue 2; }
    done
    program="$out/$arch" plugin="$out/libcount.so"
    "$compiler" "${flags[@]}" -o "$program"
    emulate=("qemu-$arch" -L "/usr/$arch-linux-gnu" -plugin "$plugin" "$program")
    # The version of the plugin interface of this qemu.
    for version in 1 2 3 4 5 none; do
        [ "$version" != none ] || { echo "this qemu takes no plugin: $("${emulate[@]}" model 2>&1)" >&2; exit 1; }
        gcc -O2 -shared -fPIC "-DVERSION=$version" benches/riscv64-count.c -o "$plugin"
        ! "${emulate[@]}" nop 1 >/dev/null 2>&1 || break
    done
    executed() { "${emulate[@]}" "$@" 2>&1 | sed -n 's/ instructions$//p'; }
    # Subtracting two runs removes the start and the end; then the loop is subtracted.
    per_loop() { echo $((($(executed "$1" $((2 * loops))) - $(executed "$1" $loops)) / loops)); }
    empty="$(per_loop nothing)"
    echo "== $arch: instructions per check, and cycles of the model (JUMP=${JUMP:=1} USE=${USE:=2} MISPREDICT=${MISPREDICT:=8} MISS=${MISS:=60})"
    printf '%-44s %12s %8s %8s\n' "" instructions cycles ratio
    first=
    while IFS=$'\t' read -r id name jumps uses misses wrong; do
        counted="$(per_loop "$id")"
        cycles="$(awk "BEGIN { print ($counted - $empty) / 16 + $jumps * $JUMP + $uses * $USE + $misses * $MISS + $wrong * $MISPREDICT }")"
        first="${first:-$cycles}"
        printf '%-44s %12s %8s %8.2f\n' "$name" "$(awk "BEGIN { print ($counted - $empty) / 16 }")" "$cycles" \
            "$(awk "BEGIN { print $cycles / $first }")"
    done < <("qemu-$arch" -L "/usr/$arch-linux-gnu" "$program" model)
done

#!/usr/bin/env bash
# The cost of probes in one's own process, with a program that uses hodo-probe's engine. Every hit is counted; if one is
# missing, this fails.
#
#   benches/engine.sh           on this machine
#   benches/engine.sh riscv64   for RISC-V, in qemu's user mode emulator: its times are those of an emulator and only show
#                               that all kinds of probes work
set -euo pipefail
cd "$(dirname "$0")/.."
run=(cargo run --quiet --release --package hodo-probe --example engine-speed)
case "${1:-native}" in
native) "${run[@]}" ;;
riscv64)
    export HODO_EMULATED=1
    export CARGO_TARGET_RISCV64GC_UNKNOWN_LINUX_GNU_LINKER=riscv64-linux-gnu-gcc
    export CARGO_TARGET_RISCV64GC_UNKNOWN_LINUX_GNU_RUNNER="qemu-riscv64 -L /usr/riscv64-linux-gnu"
    "${run[@]}" --target riscv64gc-unknown-linux-gnu
    ;;
*)
    echo "benches/engine.sh: $1 is neither native nor riscv64" >&2
    exit 1
    ;;
esac

#!/usr/bin/env bash
# Shows how much of Debian's programs for RISC-V can be traced and probed, and by which tactics. The files are bash,
# python3 and libc.so.6, or those named on the command line, with paths relative to Debian's root (usr/bin/perl) or
# absolute. Boots no machine.
#
#   scripts/riscv64-coverage.sh [FILE…]
set -euo pipefail
root="$("$(dirname "$0")/linux.sh" riscv64 root)"
here="$PWD"
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- usr/bin/bash usr/bin/python3.13 usr/lib/riscv64-linux-gnu/libc.so.6
files=()
for file in "$@"; do
    if [ -e "$root/$file" ]; then
        files+=("$root/$file")
    else
        files+=("$(cd "$here" && realpath "$file")")
    fi
done
exec cargo run --quiet --release -p hodo-plan --example tactics -- "${files[@]}"

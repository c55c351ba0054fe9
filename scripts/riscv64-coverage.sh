#!/usr/bin/env bash
# How much of Debian's programs for RISC-V can be traced and probed, and by which tactics: bash, python3, libc.so.6, or those files
# that are named, relative to Debian's root (as usr/bin/perl) or not. Boots nothing.
#
#   scripts/riscv64-coverage.sh [FILE…]
set -euo pipefail
root="$("$(dirname "$0")/riscv64-linux.sh" root)"
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
exec cargo run --quiet --release -p hodo-plan --example coverage -- "${files[@]}"

#!/usr/bin/env bash
# The tables of docs/riscv-proposals.md about real code: which of the instructions that a run of Debian's bash for
# RISC-V executes, in bash and in libc, can be probed in which way, and what a hit costs on the model. Downloads the
# packages, runs the script below in qemu's user mode emulator, and prints the tables. It fails if a probe changes what
# the code does. Asserts nothing else.
#
#   benches/riscv-proposals.sh
#
#   HODO_VM_SUITE=trixie   Debian's release
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/packages.sh
target="${CARGO_TARGET_DIR:-$PWD/target}"
cache="$target/riscv64-proposals" suite="${HODO_VM_SUITE:-trixie}" machines=riscv64
root="$cache/root"
if [ ! -e "$root/usr/bin/bash" ]; then
    rm -rf "$root.new"
    prepare_apt && unpack "$root.new" bash libc6 || { echo "bash for RISC-V: $why" >&2; exit 1; }
    ln -sfn usr/lib "$root.new/lib"
    mv "$root.new" "$root"
    private_apt apt-cache policy bash libc6 | sed -n 's/^\([a-z].*\):$/\1/p; s/ *Candidate: //p' | paste - - >"$cache/versions"
fi
cargo build --quiet --release -p hodo-rvmodel

# What scripts do without other programs: arithmetic, strings, functions, arrays, patterns, subshells, pipes.
cat >"$cache/work.sh" <<'END'
fib() { local n=$1; ((n < 2)) && { echo "$n"; return; }; echo $(($(fib $((n - 1))) + $(fib $((n - 2))))); }
declare -A words
for word in the quick brown fox jumps over the lazy dog; do words[$word]=$((${words[$word]:-0} + 1)); done
for word in "${!words[@]}"; do printf '%-8s %3d\n' "${word^^}" "${words[$word]}"; done
list=($(echo {a..f}{1..4}))
echo "${#list[@]} ${list[*]:3:4} ${list[*]/a/x}"
[[ "2026-01-31" =~ ^([0-9]+)-([0-9]+) ]] && echo "${BASH_REMATCH[2]}"
case foo.tar.gz in *.tar.*) echo "${PWD##*/}" | { read -r line; echo "${#line}"; };; esac
printf '%s\n' z y x | while read -r line; do echo "$line"; done
fib 6
while read -r line; do echo "map $line"; done </proc/self/maps
END
env -i LC_ALL=C qemu-riscv64 -L "$root" -d in_asm -D "$cache/log" "$root/usr/bin/bash" --norc "$cache/work.sh" >"$cache/out"
# Where a file was mapped.
at() { sed -n "s/^map \([0-9a-f]*\)-.*\/$1\$/\1/p" "$cache/out" | head -n1; }
echo "Debian $suite: $(tr '\n\t' ', ' <"$cache/versions")"
"$target/release/hodo-rvmodel" coverage "$cache/log" "$root/usr/bin/bash@$(at bash)" \
    "$root/usr/lib/riscv64-linux-gnu/libc.so.6@$(at libc.so.6)"

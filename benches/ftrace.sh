#!/usr/bin/env bash
# The cost of hodo-ftrace's hooks for a call, beside the plain call, glibc's own mcount, and uftrace's if it is installed.
# One run on this machine. Prints nanoseconds of CPU time and what is above the plain call; asserts nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
target="${CARGO_TARGET_DIR:-$PWD/target}"
cargo build --quiet --release --package hodo-ftrace-c --lib
directory="$(mktemp -d)"
trap 'rm -rf "$directory"' EXIT
flags=(-O2 -fno-omit-frame-pointer -falign-functions=64 -Icrates/hodo-ftrace-c/include benches/ftrace.c)
ours=(-DHOOKS "$target/release/libhodo_ftrace.so" "-Wl,-rpath,$target/release")
# The hooks use general registers only.
general=()
[ "$(uname -m)" != x86_64 ] || general=(-fno-tree-vectorize -fno-tree-slp-vectorize)

plain=
row() { # name, ns
    [ -n "$plain" ] || plain="$2"
    awk -v name="$1" -v ns="$2" -v plain="$plain" 'BEGIN { printf "%-58s %8.2f ns  %+8.2f  %6.1f x\n", name, ns, ns - plain, ns / plain }'
}
rows() { # prefix, command…
    local prefix="$1" name ns
    shift
    while IFS=$'\t' read -r name ns; do row "$prefix$name" "$ns"; done < <(cd "$directory" && "$@")
}

gcc "${flags[@]}" -o "$directory/plain"
rows "" "$directory/plain"
ways=("-pg")
[ "$(uname -m)" != x86_64 ] || ways+=("-pg -mfentry")
for way in "${ways[@]}"; do
    read -ra options <<<"$way"
    gcc "${flags[@]}" "${general[@]}" "${options[@]}" "${ours[@]}" -o "$directory/ours"
    rows "$way: " "$directory/ours"
done
gcc "${flags[@]}" -pg -o "$directory/glibc"
rows "-pg, glibc's mcount, gmon.out: " "$directory/glibc"
# All calls are recorded, in our format.
rows "-pg, recorded with HODO_FTRACE_RECORD: " env HODO_FTRACE_RECORD="$directory/ours.data" \
    LD_PRELOAD="$target/release/libhodo_ftrace.so" "$directory/glibc"
if command -v uftrace >/dev/null; then
    rows "-pg, uftrace record --nop: " uftrace record --nop --no-libcall -d "$directory/data" "$directory/glibc"
    rows "-pg, uftrace record: " uftrace record --no-libcall -b 512m -d "$directory/data" "$directory/glibc"
else
    echo "uftrace is not installed"
fi

#!/usr/bin/env bash
# The cost of hodo-ftrace's call sites, off and on, beside the plain call; and the time that it takes to switch COUNT of
# them (10,000) while a thread executes them. One run on this machine; asserts nothing.
#
#   benches/ftrace-sites.sh [COUNT]
set -euo pipefail
cd "$(dirname "$0")/.."
count="${1:-10000}"
target="${CARGO_TARGET_DIR:-$PWD/target}"
cargo build --quiet --release --package hodo-ftrace-c --lib
directory="$(mktemp -d)"
trap 'rm -rf "$directory"' EXIT

awk -v count="$count" 'BEGIN {
    for (i = 0; i < count; i++)
        printf "__attribute__((noinline)) long many_%d(long a) { __asm__ volatile(\"\" : \"+r\"(a)); return a + %d; }\n", i, i
    print "long (*const functions[])(long) = {"
    for (i = 0; i < count; i++) printf "many_%d,\n", i
    printf "};\nconst int count = %d;\n", count
}' > "$directory/many.c"
flags=(-O2 -fno-omit-frame-pointer -falign-functions=64 -pthread -Icrates/hodo-ftrace-c/include)
general=()
[ "$(uname -m)" != x86_64 ] || general=(-fno-tree-vectorize -fno-tree-slp-vectorize)

plain=
rows() { # prefix, command…
    local prefix="$1" unit name value
    shift
    while IFS=$'\t' read -r unit name value; do
        if [ "$unit" = ms ]; then
            printf '%-64s %8.2f ms\n' "$prefix$name" "$value"
            continue
        fi
        [ -n "$plain" ] || plain="$value"
        awk -v name="$prefix$name" -v ns="$value" -v plain="$plain" \
            'BEGIN { printf "%-64s %8.2f ns  %+8.2f  %6.1f x\n", name, ns, ns - plain, ns / plain }'
    done < <(cd "$directory" && "$@")
}

gcc "${flags[@]}" benches/ftrace-sites.c -o "$directory/plain"
rows "" "$directory/plain"
ways=("-pg")
[ "$(uname -m)" != x86_64 ] || ways+=("-pg -mfentry" "-fpatchable-function-entry=5")
[ "$(uname -m)" != riscv64 ] || ways+=("-fpatchable-function-entry=4 -fno-ipa-ra")
for way in "${ways[@]}"; do
    read -ra options <<<"$way"
    gcc "${flags[@]}" "${options[@]}" -O1 -c "$directory/many.c" -o "$directory/many.o"
    gcc "${flags[@]}" "${general[@]}" "${options[@]}" -DHOOKS benches/ftrace-sites.c "$directory/many.o" \
        "$target/release/libhodo_ftrace.so" "-Wl,-rpath,$target/release" -o "$directory/ours"
    rows "$way: " "$directory/ours"
done

#!/usr/bin/env bash
# Patches of SQLite, Lua and Redis while they are busy: 100 functions that they execute, one after another, chosen at
# random. Prints how long it took until all threads had changed to the new versions, and back, and which function and
# thread was in the way of those that were not complete after one second.
#
#   benches/livepatch.sh [sqlite|lua|redis…]
#
# PATCHES is how many (100), PATCHES_SEED chooses other functions. The sources are fetched: those of SQLite and Lua by
# cargo (the crates libsqlite3-sys and lua-src), those of Redis by apt-get source. They stay in target/livepatch.
# On x86-64. Exit status 1: some patch was not complete in time.
set -euo pipefail
cd "$(dirname "$0")/.."
[ "$(uname -m)" = x86_64 ] || { echo "livepatch.sh: the new versions are written for x86-64" >&2; exit 2; }
programs=("$@")
[ $# -gt 0 ] || programs=(sqlite lua redis)
target="${CARGO_TARGET_DIR:-$PWD/target}"
work="$target/livepatch"
options=(-O2 -fpatchable-function-entry=5)
mkdir -p "$work/fetched/src"
cargo build --quiet --release --package hodo-ftrace-c --lib
gcc -O2 -shared -fPIC -Icrates/hodo-ftrace-c/include benches/livepatch/patches.c -o "$work/patches.so" \
    "$target/release/libhodo_ftrace.so" -Wl,-rpath,"$target/release"

# Fetches crates for their C sources. Prints where cargo has put a crate.
crate() {
    cat >"$work/fetched/Cargo.toml" <<END
[package]
name = "fetched"
version = "0.0.0"
edition = "2021"
[dependencies]
libsqlite3-sys = { version = "0.30", features = ["bundled"] }
lua-src = "547"
[workspace]
END
    touch "$work/fetched/src/lib.rs"
    (cd "$work/fetched" && cargo fetch --quiet && cargo metadata --format-version 1 --offline) |
        grep -o "\"manifest_path\":\"[^\"]*/$1-[^\"/]*/Cargo.toml\"" | head -1 | sed 's/.*:"//; s,/Cargo.toml"$,,'
}

build() {
    local sources files
    [ ! -x "$work/$1" ] || return 0
    case "$1" in
    sqlite)
        sources="$(crate libsqlite3-sys)/sqlite3"
        gcc "${options[@]}" -I"$sources" benches/livepatch/sqlite.c "$sources/sqlite3.c" -o "$work/sqlite" \
            -lm -lpthread -ldl
        ;;
    lua)
        sources="$(echo "$(crate lua-src)"/lua-5.4.*)"
        # Without the programs lua and luac.
        mapfile -t files < <(find "$sources" -name '*.c' ! -name lua.c ! -name luac.c)
        gcc "${options[@]}" -DLUA_USE_POSIX -I"$sources" benches/livepatch/lua.c "${files[@]}" -o "$work/lua" \
            -lm -lpthread
        ;;
    redis)
        # shellcheck source=scripts/packages.sh
        source scripts/packages.sh
        local cache="$work/debian" suite machines why
        suite="$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)"
        machines=amd64
        prepare_apt || { echo "livepatch.sh: $why" >&2; return 1; }
        sed 's/^deb /deb-src /' "$cache/apt/sources.list" >"$cache/sources"
        cat "$cache/sources" >>"$cache/apt/sources.list"
        private_apt apt-get update -qq
        (cd "$cache" && private_apt apt-get source --download-only -qq redis >/dev/null && mkdir -p redis &&
            tar xf redis_*.orig.tar.gz --strip-components=1 -C redis)
        make -s -C "$cache/redis" MALLOC=libc OPTIMIZATION="${options[*]}" redis-server redis-benchmark \
            >"$cache/log" 2>&1 ||
            { tail -5 "$cache/log" >&2; return 1; }
        cp "$cache/redis/src/redis-benchmark" "$work/"
        cp "$cache/redis/src/redis-server" "$work/redis"
        ;;
    *) echo "livepatch.sh: $1: there are sqlite, lua and redis" >&2; return 2 ;;
    esac
}

# Runs a program with the patches preloaded, without the functions that it never leaves.
patched() { # functions, command…
    local skipped="$1"
    shift
    env LD_PRELOAD="$work/patches.so" PATCHES_SKIP="$skipped" "$@"
}

failed=0
loads=()
trap '[ ${#loads[@]} = 0 ] || kill -- "${loads[@]}" 2>/dev/null' EXIT
for program in "${programs[@]}"; do
    build "$program"
    echo "$program:"
    case "$program" in
    redis)
        port=$((20000 + RANDOM % 20000))
        # Clients that come before the server try for ever. Each is a group of processes, to end with what it has begun.
        set -m
        for tests in set,get,incr lpush,rpush,lpop,lrange_100 sadd,hset,spop zadd,zpopmin,mset ping; do
            (
                until (: <>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do sleep 0.1; done
                while "$work/redis-benchmark" -p "$port" -c 5 -n 20000 -r 1000 -d 64 -P 4 -q -t "$tests"; do :; done
            ) >/dev/null 2>&1 &
            loads+=("-$!")
        done
        set +m
        # The loop of events is nearly always in these, also when it waits; background threads wait in theirs.
        skipped="main aeMain aeProcessEvents aeProcessEvents.part.0 bioProcessBackgroundJobs"
        PATCHES_AFTER=4000 patched "$skipped" "$work/redis" --port "$port" --save "" --appendonly no \
            --loglevel warning --logfile "$work/redis.log" --dir "$work" || failed=1
        kill -- "${loads[@]}" 2>/dev/null || true
        loads=()
        ;;
    *) patched "main work" "$work/$program" || failed=1 ;;
    esac
done
exit "$failed"

#!/usr/bin/env bash
# Runs tests for RISC-V and AArch64 under qemu's user mode emulator: those of static keys (hodo-keys) and of what they stand on (hodo-text),
# for RISC-V also those that run moved instructions (hodo-arch) and all of the crates in `emulated` below; then those that need a
# real kernel for RISC-V in qemu's system emulator, by scripts/riscv64-linux.sh. Installs what is missing, where it may; what cannot be
# had is told, with the reason, and is no failure.
#
#   scripts/cross.sh                      both
#   scripts/cross.sh riscv64 [WORD…]      one of them, or only tests with one of these words in their names
#   scripts/cross.sh machine [WORD…]      only what runs in the machine for RISC-V
#
# Of the files in crates/hodo-keys/tests those are run that have `mod emulator;`: qemu does not see by itself that code was changed.
set -euo pipefail
cd "$(dirname "$0")/.."
skipped="${CARGO_TARGET_DIR:-target}/tmp/skipped.txt"

# Crates whose tests all run under the user mode emulator for RISC-V.
emulated=(hodo-symbols hodo-trace hodo-view)

# Whole-program tests that run in a real Linux for RISC-V: the file in crates/hodo-tests/tests, and names of its tests; without names, all.
whole_programs=(
    "filters calls_of_a_limited_depth everything_without_options"
    "processes cancelled_threads"
    "control_flow coroutines_by_swapcontext"
    "libraries"
    "syscalls errors_are_told"
)

not_run() {
    echo "not run for $1: $2"
    mkdir -p "$(dirname "$skipped")"
    echo "the tests for $1: $2" >>"$skipped"
}

# Installs packages, if this may be done here.
install() {
    local apt=(env DEBIAN_FRONTEND=noninteractive apt-get)
    command -v apt-get >/dev/null || return 1
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null && sudo -n true 2>/dev/null || return 1
        apt=(sudo -n "${apt[@]}")
    fi
    "${apt[@]}" install -y -qq --no-install-recommends "$@" >/dev/null 2>&1 ||
        { "${apt[@]}" update -qq && "${apt[@]}" install -y -qq --no-install-recommends "$@"; } >/dev/null 2>&1
}

# What both need, and the tests of static keys as `files`. Arguments: see run.
prepare() {
    local arch="$1" rust="$2" libc="$3" triple="$2-unknown-linux-gnu" gnu="$1-linux-gnu"
    local missing=()
    command -v "qemu-$arch" >/dev/null || missing+=(qemu-user)
    command -v "$gnu-gcc" >/dev/null || missing+=("gcc-$gnu")
    [ -e "/usr/$gnu/lib/libc.so" ] || missing+=("$libc")
    if [ ${#missing[@]} -gt 0 ] && ! install "${missing[@]}"; then
        not_run "$arch" "the packages ${missing[*]} cannot be installed"
        return 1
    fi
    # Some programs of a test are C++; without it they are left out.
    [ "$arch" != riscv64 ] || command -v "$gnu-g++" >/dev/null || install "g++-$gnu" || true
    if [ ! -d "$(rustc --print sysroot)/lib/rustlib/$triple/lib" ] &&
        ! timeout 120 rustup target add "$triple" >/dev/null 2>&1; then
        not_run "$arch" "rustup cannot add the target $triple"
        return 1
    fi
    local file
    files=()
    for file in $(grep -l '^mod emulator;' crates/hodo-keys/tests/*.rs); do
        file="${file##*/}"
        files+=(--test "${file%.rs}")
    done
    name="${triple^^}"
    name="CARGO_TARGET_${name//-/_}"
    export "${name}_LINKER=$gnu-gcc"
}

# Names: Rust's, Debian's package of the C library, and that of both for everything else.
run() {
    local arch="$1" rust="$2" libc="$3" triple="$2-unknown-linux-gnu" gnu="$1-linux-gnu"
    shift 3
    prepare "$arch" "$rust" "$libc" || return 0
    local test=(env "${name}_RUNNER=qemu-$arch -L /usr/$gnu" cargo test --quiet --target "$triple" --no-fail-fast)
    echo "$arch"
    [ $# -gt 0 ] || ! cargo clippy --version >/dev/null 2>&1 ||
        cargo clippy --quiet --target "$triple" -p hodo-text -p hodo-keys --features hodo-text/alloc --lib "${files[@]}" -- -D warnings
    HODO_EMULATED=1 "${test[@]}" -p hodo-text -p hodo-keys --features hodo-text/alloc --lib "${files[@]}" -- "$@"
    if [ "$arch" = riscv64 ]; then
        echo "$arch, its instructions"
        [ $# -gt 0 ] || ! cargo clippy --version >/dev/null 2>&1 ||
            cargo clippy --quiet --target "$triple" -p hodo-arch -p hodo-probe --lib --test riscv64_run --test riscv64_detour --test engine --test riscv64_differential --test beside_keys -- -D warnings
        "${test[@]}" -p hodo-arch --lib --test riscv64_run --test riscv64_detour -- "$@"
        "${test[@]}" -p hodo-agent -p hodo-probe --test riscv64_syscalls --test riscv64 -- "$@"
        "${test[@]}" -p hodo-mcount -- "$@"
        echo "$arch, stubs"
        [ $# -gt 0 ] || ! cargo clippy --version >/dev/null 2>&1 ||
            cargo clippy --quiet --target "$triple" -p hodo-patch -p hodo-agent --lib --test stubs -- -D warnings
        "${test[@]}" -p hodo-patch --test stubs -- "$@"
        echo "$arch, probes in one's own process"
        HODO_EMULATED=1 "${test[@]}" -p hodo-probe --lib --test engine --test riscv64_differential --test beside_keys -- "$@"
        HODO_EMULATED=1 "${test[@]}" -p hodo-probe-capi --test c -- "$@"
        # The emulator's usual processor has no vector registers.
        [ $# -gt 0 ] || QEMU_CPU=rv64,v=true HODO_EMULATED=1 "${test[@]}" -p hodo-patch -p hodo-probe --test stubs --test engine -- vectors
        echo "$arch, crates"
        "${test[@]}" "${emulated[@]/#/-p}" --lib --tests -- "$@"
    fi
    if [ "$arch" = aarch64 ]; then
        echo "$arch, branches written at once"
        HODO_EMULATED=words "${test[@]}" -p hodo-keys "${files[@]}" -- "$@"
    fi
}

# Runs what needs a kernel in the machine for RISC-V.
machine() {
    local triple=riscv64gc-unknown-linux-gnu linux="$PWD/scripts/riscv64-linux.sh"
    prepare riscv64 riscv64gc libc6-dev-riscv64-cross || return 0
    local why
    why="$("$linux" missing)"
    if [ -n "$why" ]; then
        not_run riscv64 "in a real Linux: $why"
        return
    fi
    local test=(env "${name}_RUNNER=$linux run" HODO_VM_TIMEOUT=300 cargo test --quiet --target "$triple" --no-fail-fast)
    echo "riscv64, in a real Linux: static keys"
    trap 'scripts/riscv64-linux.sh stop' EXIT
    # One processor: with two, each waits for the other at every change of code, for very long where this machine is busy; and
    # qemu with a thread for each may keep a translation of what was written at the same moment.
    HODO_VM_SMP=1 "$linux" start
    "${test[@]}" -p hodo-text -p hodo-keys --features hodo-text/alloc --lib "${files[@]}" -- "$@"
    [ $# -gt 0 ] || whole
    "$linux" stop
    "$linux" start
    echo "riscv64, in a real Linux: what is done with stopped threads"
    "${test[@]}" -p hodo-process --lib -- "$@"
    "$linux" stop
    trap - EXIT
}

# Runs whole-program tests in the machine that has been started, for `machine`, whose names these are.
whole() {
    echo "riscv64, in a real Linux: whole programs"
    # What is not optimized at all is several times as slow there, which takes longer than to optimize it a little.
    cargo build --quiet --target "$triple" --profile emulated -p hodo
    local built="${CARGO_TARGET_DIR:-$PWD/target}/$triple/emulated/hodo"
    local tests=() names=() line words tool tools=target/riscv64-linux/tools
    # Compilers are slow there: the programs are built here.
    mkdir -p "$tools"
    for tool in gcc g++; do
        ! command -v "riscv64-linux-gnu-$tool" >/dev/null || ln -sf "$(command -v "riscv64-linux-gnu-$tool")" "$tools/$tool"
    done
    for line in "${whole_programs[@]}"; do
        read -ra words <<<"$line"
        tests=(--quiet --target "$triple" --profile emulated -p hodo-tests --test "${words[0]}")
        names=("${words[@]:1}")
        [ ${#names[@]} = 0 ] || names+=(--exact)
        # Says that each test has failed, since nothing is run.
        HODO_TEST_BUILDS=1 env "${name}_RUNNER=env PATH=$PWD/$tools:$PATH qemu-riscv64 -L /usr/riscv64-linux-gnu" \
            cargo test "${tests[@]}" -- "${names[@]}" >/dev/null 2>&1 || true
        HODO_BIN="$built" HODO_VM_TIMEOUT=900 HODO_TEST_TIMEOUT=200 \
            env "${name}_RUNNER=$linux run" cargo test "${tests[@]}" -- "${names[@]}"
    done
    echo "riscv64, in a real Linux: a probe on every instruction, and programs as they are alone"
    HODO_RISCV64="$built" HODO_RISCV64_OPTIMIZED=1 HODO_VM_TIMEOUT=300 \
        cargo test --quiet -p hodo-tests --test riscv64_reference --test riscv64_programs
}

only="${1:-}"
shift || true
case "$only" in "" | riscv64 | aarch64 | machine) ;; *) echo "riscv64, aarch64 or machine, not $only" >&2; exit 2 ;; esac
case "$only" in "" | riscv64) run riscv64 riscv64gc libc6-dev-riscv64-cross "$@" ;; esac
case "$only" in "" | riscv64 | machine) machine "$@" ;; esac
case "$only" in "" | aarch64) run aarch64 aarch64 libc6-dev-arm64-cross "$@" ;; esac

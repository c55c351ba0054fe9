#!/usr/bin/env bash
# Runs the tests of static keys (hodo-keys) and of what they stand on (hodo-text) for RISC-V and AArch64, and those that run
# moved RISC-V instructions (hodo-arch), under qemu's user mode emulator. Installs what is missing, where it may; what cannot be
# had is told, with the reason, and is no failure.
#
#   scripts/cross.sh                      both
#   scripts/cross.sh riscv64 [WORD…]      one of them, or only tests with one of these words in their names
#
# Of the files in crates/hodo-keys/tests those are run that have `mod emulator;`: qemu does not see by itself that code was changed.
set -euo pipefail
cd "$(dirname "$0")/.."
skipped="${CARGO_TARGET_DIR:-target}/tmp/skipped.txt"

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

# Names: Rust's, Debian's package of the C library, and that of both for everything else.
run() {
    local arch="$1" rust="$2" libc="$3" triple="$2-unknown-linux-gnu" gnu="$1-linux-gnu"
    shift 3
    local missing=()
    command -v "qemu-$arch" >/dev/null || missing+=(qemu-user)
    command -v "$gnu-gcc" >/dev/null || missing+=("gcc-$gnu")
    [ -e "/usr/$gnu/lib/libc.so" ] || missing+=("$libc")
    if [ ${#missing[@]} -gt 0 ] && ! install "${missing[@]}"; then
        not_run "$arch" "the packages ${missing[*]} cannot be installed"
        return
    fi
    if [ ! -d "$(rustc --print sysroot)/lib/rustlib/$triple/lib" ] &&
        ! timeout 120 rustup target add "$triple" >/dev/null 2>&1; then
        not_run "$arch" "rustup cannot add the target $triple"
        return
    fi
    local files=() file
    for file in $(grep -l '^mod emulator;' crates/hodo-keys/tests/*.rs); do
        file="${file##*/}"
        files+=(--test "${file%.rs}")
    done
    local name="${triple^^}"
    name="CARGO_TARGET_${name//-/_}"
    local test=(env "${name}_LINKER=$gnu-gcc" "${name}_RUNNER=qemu-$arch -L /usr/$gnu" cargo test --quiet --target "$triple" --no-fail-fast)
    echo "$arch"
    [ $# -gt 0 ] || ! cargo clippy --version >/dev/null 2>&1 ||
        cargo clippy --quiet --target "$triple" -p hodo-text -p hodo-keys --features hodo-text/alloc --lib "${files[@]}" -- -D warnings
    HODO_EMULATED=1 "${test[@]}" -p hodo-text -p hodo-keys --features hodo-text/alloc --lib "${files[@]}" -- "$@"
    if [ "$arch" = riscv64 ]; then
        echo "$arch, its instructions"
        [ $# -gt 0 ] || ! cargo clippy --version >/dev/null 2>&1 ||
            cargo clippy --quiet --target "$triple" -p hodo-arch -p hodo-probe --lib --test riscv64_run --test riscv64_detour --test engine -- -D warnings
        "${test[@]}" -p hodo-arch --lib --test riscv64_run --test riscv64_detour -- "$@"
        "${test[@]}" -p hodo-mcount -- "$@"
        echo "$arch, probes in one's own process"
        HODO_EMULATED=1 "${test[@]}" -p hodo-probe --lib --test engine -- "$@"
    fi
    if [ "$arch" = aarch64 ]; then
        echo "$arch, branches written at once"
        HODO_EMULATED=words "${test[@]}" -p hodo-keys "${files[@]}" -- "$@"
    fi
}

only="${1:-}"
shift || true
case "$only" in "" | riscv64 | aarch64) ;; *) echo "riscv64 or aarch64, not $only" >&2; exit 2 ;; esac
[ "$only" = aarch64 ] || run riscv64 riscv64gc libc6-dev-riscv64-cross "$@"
[ "$only" = riscv64 ] || run aarch64 aarch64 libc6-dev-arm64-cross "$@"

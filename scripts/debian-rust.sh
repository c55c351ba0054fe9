#!/usr/bin/env bash
# Debian's Rust compiler with the standard library for another machine, in case rustup cannot add a target. Downloads it
# (some 200 MB) and prints the path of the compiler, to be used as RUSTC. The compiler brings its own C library, so it
# runs here whatever the release of Debian. cargo and everything else stay the same. If it cannot be had, the reason is
# on standard error, and the exit status is 1.
#
#   scripts/debian-rust.sh riscv64|aarch64
#
#   HODO_DEBIAN_MIRROR=…  a mirror of Debian; default: the one that apt uses here
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/packages.sh
cache="${CARGO_TARGET_DIR:-$PWD/target}/debian-rust"
suite=trixie

fail() {
    echo "debian-rust: $*" >&2
    exit 1
}

case "${1:-}" in
riscv64) machine=riscv64 ;;
aarch64) machine=arm64 ;;
*) fail "riscv64 or aarch64, not '${1:-}'" ;;
esac
if ! command -v dpkg-deb || ! command -v apt-get; then
    fail "this is no Debian"
fi >/dev/null
[ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || install_packages debian-archive-keyring || fail "the package debian-archive-keyring cannot be installed"
machines="$(dpkg --print-architecture) riscv64 arm64"
root="$cache/root"
if [ ! -x "$cache/rustc" ]; then
    rm -rf "$root" "$cache"/std-*
    prepare_apt || fail "$why"
    unpack "$root" rustc-web || fail "$why"
    linker="$(linker_in "$root")"
    libraries="$(dirname "$(find "$root/usr/lib" -name 'librustc_driver*.so' | head -n1)")"
    cat >"$cache/rustc.new" <<END
#!/bin/sh
exec "$linker" --library-path "$libraries" "$root/usr/bin/rustc" --sysroot "$root/usr" "\$@"
END
    chmod +x "$cache/rustc.new"
    "$cache/rustc.new" --version >/dev/null || fail "Debian's compiler does not run here"
    mv "$cache/rustc.new" "$cache/rustc"
fi
if [ ! -e "$cache/std-$machine" ]; then
    unpack "$root" --alone "libstd-rust-web-dev:$machine" || fail "$why"
    touch "$cache/std-$machine"
fi
echo "$cache/rustc"

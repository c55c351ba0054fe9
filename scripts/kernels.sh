#!/usr/bin/env bash
# Builds the kernels in examples/, runs them in qemu, and compares what they print. Format and lints are checked, too.
# Installs what is missing, if it may. What cannot be installed is reported with the reason, and does not count as a
# failure.
#
#   scripts/kernels.sh                all of them
#   scripts/kernels.sh NAME…          those with these names: the directories in examples/
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/packages.sh
root="$PWD"
target_dir="${CARGO_TARGET_DIR:-$root/target}"
skipped="$target_dir/tmp/skipped.txt"
# Nothing here takes as long; it ends a kernel that hangs.
life=300

# Reports that a kernel was not run: its name, and the reason.
skip() {
    mkdir -p "$(dirname "$skipped")"
    echo "the kernel $1: $2" | tee -a "$skipped"
}

# The packages and the Rust target that a kernel needs. After a failure, `why` has the reason.
need() {
    local command="$1" package="$2"
    command -v "$command" >/dev/null || install_packages "$package" || true
    command -v "$command" >/dev/null || { why="there is no $command, and $package cannot be installed"; return 1; }
}
need_target() {
    [ -d "$(rustc --print sysroot)/lib/rustlib/$1/lib" ] ||
        timeout 120 rustup target add "$1" >/dev/null 2>&1 ||
        { why="rustup cannot add the target $1"; return 1; }
}

# Checks and builds a kernel: its directory.
build() {
    cd "$root/examples/$1"
    cargo fmt --check
    cargo clippy --quiet --target-dir "$target_dir" -- -D warnings
    cargo build --quiet --target-dir "$target_dir"
    cargo build --quiet --release --target-dir "$target_dir"
    cd "$root"
}

# Runs a kernel, and compares: its directory, the profile, the target, qemu's exit code if all went well, and qemu with
# what comes before the kernel's file.
compare() {
    local name="$1" profile="$2" triple="$3" well="$4" output expected
    shift 4
    output="$target_dir/tmp/$name-$profile.txt"
    expected="$root/examples/$name/expected.txt"
    mkdir -p "$target_dir/tmp"
    local code=0
    timeout -k 5 "$life" "$@" "$target_dir/$triple/$profile/$name" </dev/null >"$output" 2>&1 || code=$?
    # The firmware prints before the kernel does.
    if ! sed -n '/^a kernel/,$p' "$output" | tr -d '\r' | diff -u "$expected" - || [ "$code" != "$well" ]; then
        echo "examples/$name ($profile) has printed something else than expected.txt, or not ended (exit code $code); all of it is in $output" >&2
        return 1
    fi
    echo "examples/$name ($profile): $(wc -l <"$expected") lines as expected"
}

bare_riscv64() {
    local triple=riscv64gc-unknown-none-elf name=bare-riscv64 profile
    if ! need_target "$triple" || ! need qemu-system-riscv64 qemu-system-misc ||
        ! need "${RISCV64_CC:-riscv64-linux-gnu-gcc}" gcc-riscv64-linux-gnu; then
        skip "$name" "$why"
        return
    fi
    build "$name"
    for profile in debug release; do
        # In one thread, which switches between the harts at any basic block. With a thread for each hart, qemu 7.2 has
        # kept old code after writes and `fence.i` on both harts (3 runs of 50): it shares translations between harts,
        # and one of them may be in the middle of translating what another one overwrites.
        # The same is true of the other two kernels: docs/kernels.md. No other version of qemu has been tried.
        compare "$name" "$profile" "$triple" 0 qemu-system-riscv64 -machine virt -smp 2 -m 128M \
            -accel tcg,thread=single -nographic -no-reboot -bios default -kernel
    done
}

bare_x86_64() {
    local triple=x86_64-unknown-none name=bare-x86-64 profile package=gcc
    [ "$(uname -m)" = x86_64 ] || package=gcc-x86-64-linux-gnu
    if ! need_target "$triple" || ! need qemu-system-x86_64 qemu-system-x86 ||
        ! need "${X86_64_CC:-x86_64-linux-gnu-gcc}" "$package"; then
        skip "$name" "$why"
        return
    fi
    build "$name"
    for profile in debug release; do
        compare "$name" "$profile" "$triple" 33 qemu-system-x86_64 -cpu max -smp 2 -m 128M \
            -accel tcg,thread=single -display none -serial stdio -no-reboot \
            -device isa-debug-exit,iobase=0xf4 -kernel
    done
}

bare_aarch64() {
    local triple=aarch64-unknown-none-softfloat name=bare-aarch64 profile
    if ! need_target "$triple" || ! need qemu-system-aarch64 qemu-system-arm ||
        ! need "${AARCH64_CC:-aarch64-linux-gnu-gcc}" gcc-aarch64-linux-gnu; then
        skip "$name" "$why"
        return
    fi
    build "$name"
    for profile in debug release; do
        compare "$name" "$profile" "$triple" 0 qemu-system-aarch64 -machine virt -cpu max,pauth-impdef=on -smp 2 \
            -m 128M -accel tcg,thread=single -nographic -no-reboot \
            -semihosting-config enable=on,target=native -kernel
    done
}

names=("$@")
[ ${#names[@]} -gt 0 ] || names=(bare-riscv64 bare-x86-64 bare-aarch64)
for name in "${names[@]}"; do
    case "$name" in
    bare-riscv64) bare_riscv64 ;;
    bare-x86-64) bare_x86_64 ;;
    bare-aarch64) bare_aarch64 ;;
    *) echo "there is no kernel examples/$name" >&2; exit 2 ;;
    esac
done

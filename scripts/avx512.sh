#!/usr/bin/env bash
# Runs tests of expanded gathers, scatters and masked moves on an emulated processor with AVX-512: Debian's bochs, which
# boots Debian's kernel with these tests in memory. Takes two minutes. Needs no root, and works on any x86-64 processor.
# The exit status is 0 if all tests have passed, and none was skipped.
#
#   scripts/avx512.sh                 all of them
#   scripts/avx512.sh DIRECTORY [NAME…]   tests of one directory in crates/hodo-tests/tests; without names, all of them
#   scripts/avx512.sh missing         prints what makes this impossible, if anything; otherwise downloads what is needed
#
#   HODO_AVX512_TIMEOUT=3600    the timeout in seconds
#   HODO_AVX512_CPU=…           bochs's name of the processor (corei7_skylake_x)
#   HODO_AVX512_MEMORY=…        its memory in MB (2048)
#   HODO_AVX512_APPEND=…        added to the kernel's command line
#   HODO_DEBIAN_MIRROR=…        a mirror of Debian; default: the one that apt uses here
set -euo pipefail
tree="$(cd "$(dirname "$0")/.." && pwd -P)"
. "$tree/scripts/packages.sh"
target="${CARGO_TARGET_DIR:-$tree/target}"
cache="$target/avx512"
limit="${HODO_AVX512_TIMEOUT:-3600}"
# Older releases have a bochs without AVX-512.
suite=trixie
machines=amd64

# The tests: the directory in crates/hodo-tests/tests, and the names of its tests. These execute the code that takes the place
# of every form. Those are left out that compare faults of whole instructions with what processors show: after a fault of
# a gather of AVX2, bochs has extended the mask to whole lanes, and masked moves fault at another address. Those with
# whole gathers and scatters, too: bochs 3.0 refuses (SIGILL) any with an index register above 15.
tests=(
    "engine lane_interpreter::expanded_gathers_and_scatters_do_what_the_interpreter_does lane_interpreter::expanded_masked_moves_do_what_the_interpreter_does"
)
# The examples of hodo-dbi that they start, and this machine's programs that they use.
examples=(expand scramble)
tools=(sh setarch)
# What is downloaded, without the kernel: the emulator, and what makes a disc that boots.
packages=(bochs bochs-term bochsbios vgabios isolinux syslinux-common xorriso busybox-static)

fail() {
    echo "avx512: $*" >&2
    exit 125
}

# Downloads the emulator and what it boots. After a failure, `why` has the reason.
ready() {
    local root="$cache/debian" image
    command -v dpkg-deb >/dev/null && command -v apt-get >/dev/null || { why="this is no Debian"; return 1; }
    [ "$(uname -m)" = x86_64 ] || { why="this machine is not x86-64"; return 1; }
    [ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || install_packages debian-archive-keyring ||
        { why="the package debian-archive-keyring cannot be installed"; return 1; }
    mkdir -p "$cache"
    # One call of this script at a time.
    exec 9>"$cache/lock"
    flock 9
    if [ "$(cat "$cache/packages" 2>/dev/null)" != "${packages[*]}" ]; then
        rm -rf "$root" "$cache/kernel"
        prepare_apt || return 1
        unpack "$root" "${packages[@]}" || return 1
        # The kernel for virtual machines is smaller.
        image="$(private_apt apt-cache depends linux-image-cloud-amd64 | sed -n 's/^ *Depends: \(linux-image-.*\)/\1/p' | head -n1)"
        unpack "$cache/kernel" --alone "$image" || return 1
        mv "$cache"/kernel/boot/vmlinuz-* "$cache/vmlinuz" || { why="$image has no kernel"; return 1; }
        rm -rf "$cache/kernel"
        echo "${packages[*]}" >"$cache/packages"
    fi
}

# Becomes one of the downloaded programs, with the C library that it was built for.
unpacked() {
    local libraries="$cache/debian/usr/lib/x86_64-linux-gnu" program="$1"
    shift
    exec "$(linker_in "$cache/debian")" --library-path "$libraries:$libraries/pulseaudio" "$cache/debian/usr/bin/$program" "$@"
}

# Copies files into the machine, where they have the same paths. Links are followed.
put() {
    local file
    for file in "$@"; do
        [ ! -e "$stage$file" ] || continue
        mkdir -p "$stage$(dirname "$file")"
        cp -L "$file" "$stage$file"
    done
}

# The same for programs, with their libraries, without their tables for debuggers.
put_programs() {
    local program
    for program in "$@"; do
        [ ! -e "$stage$program" ] || continue
        put "$program"
        chmod u+w "$stage$program"
        strip --strip-debug "$stage$program"
        # shellcheck disable=SC2046 # one word for each
        put $(ldd "$program" 2>/dev/null | grep -o '/[^ ]*' || true)
    done
}

# Prints the files that cargo makes, with these arguments.
made() {
    cargo "$@" --message-format json | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p'
}

# The programs that a line of `tests` needs are built here, since there is no compiler in the machine. The tests
# themselves then fail.
programs_of() {
    (cd "$tree/crates/hodo-tests" && HODO_TEST_BUILDS=1 "$@" --nocapture --test-threads 1 2>/dev/null || true) |
        sed -n 's/.*built: //p'
}

# Fills the directory `stage` with everything that is in the machine.
make_stage() {
    local line words dir executable arguments=()
    rm -rf "$stage"
    mkdir -p "$stage"/{dev,etc,proc,sys,tmp,usr/{bin,lib,lib64,sbin},root}
    for dir in bin lib lib64 sbin; do
        ln -s "usr/$dir" "$stage/$dir"
    done
    cp "$cache/debian/usr/bin/busybox" "$stage/usr/bin/busybox"
    for line in "${tests[@]}"; do
        arguments+=(--test "${line%% *}")
    done
    hodo="$(made build --quiet --package hodo --bin hodo)"
    put_programs "$hodo"
    for line in "${tools[@]}"; do
        put_programs "$(command -v "$line" || fail "there is no $line")"
    done
    mapfile -t words < <(made build --quiet --package hodo-dbi "${examples[@]/#/--example=}")
    [ ${#words[@]} = ${#examples[@]} ] || fail "the examples cannot be built"
    put_programs "${words[@]}"
    declare -A executables=()
    while read -r executable; do
        line="${executable##*/}"
        executables["${line%-*}"]="$executable"
    done < <(made test --quiet --no-run --package hodo-tests "${arguments[@]}")
    for line in "${tests[@]}"; do
        read -ra words <<<"$line"
        executable="${executables[${words[0]}]:-}"
        [ -n "$executable" ] || fail "the tests of ${words[0]} cannot be built"
        words=("$executable" "${words[@]:1}")
        [ ${#words[@]} = 1 ] || words+=(--exact)
        put_programs "$executable"
        mapfile -t arguments < <(programs_of "${words[@]}")
        put_programs "${arguments[@]}"
        printf '%q ' "${words[@]}" >>"$stage/etc/tests"
        echo >>"$stage/etc/tests"
    done
    # The names of the programs depend on their sources.
    put "$tree"/crates/hodo-tests/programs/*.*
    guest >"$stage/init"
    chmod +x "$stage/init"
}

# The first process in the machine.
guest() {
    cat <<END
#!/bin/busybox sh
tree='$tree'
target='$target'
export HODO_BIN='$hodo'
END
    cat <<'END'
export PATH=/usr/bin:/usr/sbin HOME=/root LANG=C.UTF-8 HODO_TEST_TIMEOUT=3000 HODO_TEST_EMULATED= RUST_BACKTRACE=0
# Programs of this machine go before those of busybox.
for name in $(/bin/busybox --list); do
    [ -e "/usr/bin/$name" ] || /bin/busybox ln -s busybox "/usr/bin/$name"
done
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm
mount -t tmpfs shm /dev/shm
ip link set lo up
ulimit -c 0
seconds() { cut -d . -f 1 /proc/uptime; }
echo "the machine has started"
status=0
grep -q avx512bw /proc/cpuinfo || { echo "this processor has no AVX-512"; status=1; }
cd "$tree/crates/hodo-tests"
while read -r test; do
    eval "$test --test-threads 1 --color never" 2>&1 </dev/null || status=1
done </etc/tests
if [ -s "$target/tmp/skipped.txt" ]; then
    echo "tests were skipped:"
    cat "$target/tmp/skipped.txt"
    status=1
fi
echo "the status is $status"
# What was written must have left the serial port.
sleep 1
poweroff -f
END
}

# Makes a CD from which the machine boots.
make_disc() {
    local disc="$cache/disc" root="$cache/debian/usr/lib"
    rm -rf "$disc"
    mkdir -p "$disc/isolinux"
    cp "$cache/vmlinuz" "$disc/vmlinuz"
    cp "$root/ISOLINUX/isolinux.bin" "$root/syslinux/modules/bios/ldlinux.c32" "$disc/isolinux"
    # Unpacking it would take the machine longer than reading it.
    (cd "$stage" && find . | "$cache/debian/usr/bin/busybox" cpio -o -H newc --quiet) >"$disc/initrd"
    cat >"$disc/isolinux/isolinux.cfg" <<END
DEFAULT linux
LABEL linux
KERNEL /vmlinuz
INITRD /initrd
APPEND console=ttyS0 quiet panic=-1 rdinit=/init nokaslr mitigations=off ${HODO_AVX512_APPEND:-}
END
    (unpacked xorriso -as mkisofs -quiet -o "$cache/disc.iso" -b isolinux/isolinux.bin -c isolinux/boot.cat \
        -no-emul-boot -boot-load-size 4 -boot-info-table "$disc" 2>/dev/null) || fail "the disc cannot be made"
    rm -rf "$disc" "$stage"
}

# Time in the machine depends only on the number of instructions.
write_configuration() {
    local share="$cache/debian/usr/share" memory="${HODO_AVX512_MEMORY:-2048}"
    cat <<END
config_interface: textconfig
display_library: term
cpu: model=${HODO_AVX512_CPU:-corei7_skylake_x}, count=1, ips=100000000, reset_on_triple_fault=0
memory: guest=$memory, host=$memory
romimage: file=$share/bochs/BIOS-bochs-latest, options=fastboot
vgaromimage: file=$share/vgabios/vgabios.bin
clock: sync=none
ata0: enabled=1
ata0-master: type=cdrom, path=$cache/disc.iso, status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev=$cache/console
plugin_ctrl: speaker=0
log: $cache/log
panic: action=fatal
error: action=report
info: action=report
debug: action=ignore
END
}

# Boots the machine, shows what it writes, and returns its status.
boot() {
    local waiter line status=
    : >"$cache/console"
    write_configuration >"$cache/bochsrc"
    # It must not change the terminal of this script.
    LTDL_LIBRARY_PATH="$cache/debian/usr/lib/x86_64-linux-gnu/bochs/plugins" TERM=linux \
        unpacked bochs-bin -q -f "$cache/bochsrc" </dev/null >"$cache/screen" 2>&1 &
    emulator=$!
    trap 'kill -KILL $emulator 2>/dev/null || true' EXIT
    (
        end=$((SECONDS + limit))
        while ((SECONDS < end)) && kill -0 $emulator 2>/dev/null && ! grep -q '^the status is' "$cache/console"; do
            sleep 0.5
        done
        # It has a moment to end by itself.
        sleep 5
        kill -KILL $emulator 2>/dev/null
    ) &
    waiter=$!
    tail -c +1 -s 0.2 -f --pid=$waiter "$cache/console" | sed -u 's/\r//'
    wait $waiter || true
    status="$(tr -d '\r' <"$cache/console" | sed -n 's/^the status is //p')"
    if [ -z "$status" ]; then
        tail -n 5 "$cache/log" >&2
        fail "the machine has not come to its end within $limit seconds; see $cache/console"
    fi
    return "$status"
}

case "${1:-}" in
-h | --help)
    sed -n '2,/^set /s/^# \?//p' "$0"
    exit
    ;;
missing)
    ready || echo "$why"
    exit
    ;;
"") ;;
*) tests=("$*") ;;
esac
ready || fail "$why"
cd "$tree"
stage="$cache/stage"
begun=$SECONDS
make_stage
make_disc
echo "built in $((SECONDS - begun)) s"
begun=$SECONDS
status=0
boot || status=$?
echo "ran in $((SECONDS - begun)) s"
exit "$status"

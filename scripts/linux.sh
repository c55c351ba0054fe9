#!/usr/bin/env bash
# A real Linux for another instruction set (Debian's kernel and programs, in qemu's system emulator), for what qemu's
# user mode does not have: ptrace, performance counters, vector units with their state in signal frames.
#
#   scripts/linux.sh ARCH run COMMAND [ARG…]   runs a command in the machine that was started, or else in a new one
#   scripts/linux.sh ARCH start                starts a machine for many commands; takes ten seconds to a minute
#   scripts/linux.sh ARCH stop                 stops it
#   scripts/linux.sh ARCH root                 downloads Debian's programs and prints where they are; boots nothing
#   scripts/linux.sh ARCH missing              prints what makes this impossible, if anything; else downloads what is needed
#
# ARCH is riscv64 or aarch64. The machine for aarch64 has BTI, PAC, MTE, SVE and SVE2, with vectors of up to 256 bytes.
#
# A command's standard output, standard error and exit status are passed on (128 + N for signal N, 124 after a timeout).
# It has no input. It runs as root, in the directory where the script was called. This source tree and the directories
# in HODO_VM_SHARE (separated by spaces) have the same paths there as here; everything else is Debian's. /tmp is
# separate. Variables whose names begin with HODO_, CARGO, RUST or GLIBC_ are passed on. Commands started at the same
# time run at the same time.
#
#   HODO_VM_TIMEOUT=600   the timeout of a command in seconds
#   HODO_VM_APPEND=…      added to the kernel's command line at start; no4lvl means an address space of 39 bits (riscv64)
#   HODO_VM_CPU=…, HODO_VM_SMP=2, HODO_VM_MEMORY=2G, HODO_VM_ACCEL=tcg,thread=multi
#                         options of qemu at start. The processor is rv64,v=true or max,pauth-impdef=on. Tests that
#                         change running code need HODO_VM_SMP=1. Otherwise qemu (7.2, rarely 10.0) may keep an old
#                         translation of code that is written at the same moment, whatever fences are executed.
#                         tcg,thread=single works, too, but a membarrier takes 100 ms
#   HODO_VM_DIR=…         the machine's directory (target/ARCH-linux/vm); a second machine needs another one
#   HODO_VM_CACHE=…       the directory for downloads (target/ARCH-linux); source trees may share it
#   HODO_VM_SUITE=trixie  Debian's release. Use another HODO_VM_CACHE for another one
#   HODO_DEBIAN_MIRROR=…  a mirror of Debian; default: the one that apt uses here
set -euo pipefail
tree="$(cd "$(dirname "$0")/.." && pwd -P)"
. "$tree/scripts/packages.sh"
arch="${1:-}"
shift || true
case "$arch" in
riscv64)
    machines=riscv64 # Debian's name of the architecture
    system=(-M virt -cpu "${HODO_VM_CPU:-rv64,v=true}")
    console=ttyS0
    # What qemu needs to start the machine, and Debian's package for it.
    firmware=/usr/share/qemu/opensbi-riscv64-generic-fw_dynamic.bin
    qemu_package=qemu-system-misc
    ;;
aarch64)
    machines=arm64
    # Pointers signed by the architecture's own algorithm would make everything ten times slower.
    system=(-M "virt,mte=on" -cpu "${HODO_VM_CPU:-max,pauth-impdef=on}")
    console=ttyAMA0
    firmware=
    qemu_package=qemu-system-arm
    ;;
*)
    sed -n '2,/^set /s/^# \?//p' "$0" >&2
    exit 2
    ;;
esac
cache="${HODO_VM_CACHE:-${CARGO_TARGET_DIR:-$tree/target}/$arch-linux}"
machine="${HODO_VM_DIR:-$cache/vm}"
limit="${HODO_VM_TIMEOUT:-600}"
suite="${HODO_VM_SUITE:-trixie}"
# The programs to trace, and what the tests use. Their dependencies are installed, too.
programs=(base-files bash binutils coreutils debianutils diffutils findutils gawk gcc-14 g++-14 git grep gzip libc-bin libc6
    libc6-dev lua5.4 mount openssl perl procps python3 redis-server redis-tools sed sqlite3 strace tar util-linux)
# Modules of the kernel, which are not built in.
modules=(9p 9pnet_virtio virtio_blk ext4 crc32c_generic virtio_rng)

fail() {
    echo "$arch-linux: $*" >&2
    exit 125
}

# Programs that this script itself needs. If they are not available, `why` has the reason.
need_tools() {
    local missing=()
    command -v dpkg-deb >/dev/null && command -v apt-get >/dev/null || { why="this is no Debian"; return 1; }
    command -v "qemu-system-$arch" >/dev/null || missing+=("$qemu_package")
    command -v "qemu-$arch" >/dev/null || missing+=(qemu-user)
    command -v xz >/dev/null || missing+=(xz-utils)
    command -v mke2fs >/dev/null || [ -x /usr/sbin/mke2fs ] || missing+=(e2fsprogs)
    [ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || missing+=(debian-archive-keyring)
    [ -z "$firmware" ] || [ -e "$firmware" ] || missing+=(qemu-system-data)
    [ ${#missing[@]} = 0 ] || install_packages "${missing[@]}" || { why="the packages ${missing[*]} cannot be installed"; return 1; }
}

# Prints the files of the modules that a module needs, then its own.
module_files() {
    local name file other
    for name in "$@"; do
        file="$(find "$cache/kernel.new/usr/lib/modules" -name "$name.ko*" -o -name "${name//_/-}.ko*" | head -n1)"
        [ -n "$file" ] || continue
        # shellcheck disable=SC2046 # one word for each
        module_files $(xz -dc "$file" | tr '\0' '\n' | grep -a -m1 '^depends=' | cut -d= -f2 | tr , ' ')
        echo "$file"
    done
}

make_kernel() {
    [ -e "$cache/kernel/initramfs.gz" ] && [ "$cache/kernel/initramfs.gz" -nt "$0" ] && return
    rm -rf "$cache/kernel.new"
    local new="$cache/kernel.new" image parts file number=0
    prepare_apt || return 1
    image="$(private_apt apt-cache depends "linux-image-$machines" | sed -n 's/^ *Depends: \(linux-image-.*\)/\1/p' | head -n1)"
    # Newer releases have the kernel and its modules in separate packages.
    mapfile -t parts < <(private_apt apt-cache depends "$image" | sed -n 's/^ *Depends: \(linux-\(binary\|modules\)-.*\)/\1/p')
    unpack "$new" --alone "$image" "${parts[@]}" busybox-static || return 1
    mv "$(find "$new" -name 'vmlinu[xz]*' -type f | head -n1)" "$new/vmlinux" || { why="$image has no kernel"; return 1; }
    mkdir -p "$new"/initramfs/{bin,dev,etc,jobs,modules,proc,root,sys,tmp}
    for file in $(module_files "${modules[@]}" | awk '!seen[$0]++'); do
        number=$((number + 1))
        xz -dc "$file" >"$(printf '%s/initramfs/modules/%02d.ko' "$new" $number)"
    done
    mv "$new/usr/bin/busybox" "$new/initramfs/bin/busybox"
    ln -s bin/busybox "$new/initramfs/init"
    echo '::sysinit:/bin/busybox sh /etc/boot
::once:/bin/busybox sh /etc/jobs
::restart:/bin/busybox poweroff -f' >"$new/initramfs/etc/inittab"
    guest_boot >"$new/initramfs/etc/boot"
    guest_jobs >"$new/initramfs/etc/jobs"
    (cd "$new/initramfs" && find . | "qemu-$arch" bin/busybox cpio -o -H newc --quiet) | gzip -1 >"$new/initramfs.gz"
    rm -rf "$new"/{boot,usr,initramfs} "$cache/kernel"
    mv "$new" "$cache/kernel"
}

make_root() {
    local new="$cache/root.new" dir
    [ "$(cat "$cache/root.list" 2>/dev/null)" != "${programs[*]}" ] || [ ! -e "$cache/root.img" ] || return 0
    rm -rf "$new" "$cache/root" "$cache/root.img"
    mkdir -p "$new"/usr/{bin,sbin,lib}
    for dir in bin sbin lib; do
        ln -s "usr/$dir" "$new/$dir"
    done
    [ -e "$cache/apt/sources.list" ] || prepare_apt || return 1
    unpack "$new" "${programs[@]}" || return 1
    # This is what the packages' own scripts would do.
    mkdir -p "$new"/{dev,proc,sys,tmp,run,root,jobs,etc}
    [ -e "$new/bin/sh" ] || ln -s bash "$new/bin/sh"
    for dir in gcc g++ cpp; do
        ln -sf "$dir-14" "$new/usr/bin/$dir"
    done
    ln -sf gcc "$new/usr/bin/cc"
    ln -sf gawk "$new/usr/bin/awk"
    ln -sf lua5.4 "$new/usr/bin/lua"
    printf 'root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n' >"$new/etc/passwd"
    printf 'root:x:0:\nnogroup:x:65534:\n' >"$new/etc/group"
    echo '127.0.0.1 localhost' >"$new/etc/hosts"
    rm -rf "$new"/usr/share/{doc,man,locale,info,lintian}
    PATH="$PATH:/usr/sbin" mke2fs -q -t ext4 -O ^has_journal -E root_owner=0:0,lazy_itable_init=1 -d "$new" "$cache/root.img.new" 2500M >/dev/null || { why="mke2fs fails"; return 1; }
    mv "$new" "$cache/root"
    mv "$cache/root.img.new" "$cache/root.img"
    echo "${programs[*]}" >"$cache/root.list"
}

# The first process in the machine.
guest_boot() {
    cat <<'END'
/bin/busybox mkdir -p /bin /jobs /debian
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in /modules/*.ko; do insmod "$module"; done
share='trans=virtio,version=9p2000.L,msize=512000,cache=mmap,access=any'
mount -t 9p -o "$share" jobs /jobs || { echo "no shared directory"; poweroff -f; }
mount -t ext4 -o noatime /dev/vda /debian || { echo "no file system"; poweroff -f; }
mkdir -p /dev/pts /dev/shm
ln -s /proc/self/fd /dev/fd
ln -s fd/0 /dev/stdin
ln -s fd/1 /dev/stdout
ln -s fd/2 /dev/stderr
mount -t devpts pts /dev/pts
mount -t tmpfs shm /dev/shm
mount -t tmpfs run /debian/run
mount -t tmpfs -o mode=1777 tmp /debian/tmp
for part in dev proc sys jobs; do mount --rbind /$part /debian/$part; done
while read -r tag path; do
    mkdir -p "/debian$path"
    mount -t 9p -o "$share" "$tag" "/debian$path"
done </jobs/shares
ip link set lo up
hostname hodo
ulimit -c 0
END
}

# Runs the commands that arrive by their numbers on a serial port.
guest_jobs() {
    cat <<'END'
export PATH=/bin
run() {
    cd "/jobs/$1"
    setsid sh -c 'echo $$ >pid; exec chroot /debian /bin/bash "/jobs/$0/command"' "$1" >out 2>err </dev/null
    echo $? >status.new
    mv status.new status
}
for port in /sys/class/virtio-ports/*; do
    [ "$(cat "$port/name")" != jobs ] || exec 3<"/dev/${port##*/}"
done
: >/jobs/ready
while read -r verb job <&3; do
    case "$verb" in
    run) run "$job" & ;;
    kill) chroot /debian pkill -KILL -s "$(cat "/jobs/$job/pid")" . ;;
    stop) break ;;
    esac
done
sync
poweroff -f
END
}

# Boots a machine. $1 is its directory, $2 its lifetime in seconds.
boot() {
    local dir="$1" life="$2" share shares=() number=0
    rm -rf "$dir"
    mkdir -p "$dir/jobs"
    mkfifo "$dir/serial.in" "$dir/serial.out"
    : >"$dir/jobs/shares"
    for share in "$tree" "$cache" ${CARGO_TARGET_DIR:-} ${HODO_VM_SHARE:-}; do
        # A directory inside another one is already shared.
        share="$(realpath "$share")"
        case "$share/" in "$tree"/?*) continue ;; esac
        number=$((number + 1))
        shares+=(-fsdev "local,id=share$number,path=$share,security_model=none,multidevs=remap"
            -device "virtio-9p-pci,fsdev=share$number,mount_tag=share$number")
        echo "share$number $share" >>"$dir/jobs/shares"
    done
    timeout -k 5 "$life" "qemu-system-$arch" "${system[@]}" -accel "${HODO_VM_ACCEL:-tcg,thread=multi}" \
        -smp "${HODO_VM_SMP:-2}" -m "${HODO_VM_MEMORY:-2G}" \
        -kernel "$cache/kernel/vmlinux" -initrd "$cache/kernel/initramfs.gz" \
        -append "console=$console quiet panic=-1 rdinit=/init ${HODO_VM_APPEND:-}" \
        -drive "file=$cache/root.img,format=raw,if=none,id=root,snapshot=on" -device virtio-blk-pci,drive=root \
        -device virtio-rng-pci -device virtio-serial-pci \
        -chardev "pipe,id=jobs,path=$dir/serial" -device virtserialport,chardev=jobs,name=jobs \
        -fsdev "local,id=jobs,path=$dir/jobs,security_model=none,multidevs=remap" \
        -device virtio-9p-pci,fsdev=jobs,mount_tag=jobs "${shares[@]}" \
        -nic none -display none -monitor none -no-reboot -serial "file:$dir/console" </dev/null >"$dir/qemu" 2>&1 &
    echo $! >"$dir/pid"
    local waited
    for ((waited = 0; waited < 1200; waited++)); do
        [ ! -e "$dir/jobs/ready" ] || return 0
        alive "$dir" || break
        sleep 0.1
    done
    tail -n 20 "$dir/qemu" "$dir/console" >&2
    fail "the machine does not start"
}

alive() {
    [ -e "$1/pid" ] && kill -0 "$(cat "$1/pid")" 2>/dev/null
}

end() {
    alive "$1" || return 0
    local waited
    echo stop >"$1/serial.in"
    for ((waited = 0; waited < 100; waited++)); do
        alive "$1" || return 0
        sleep 0.1
    done
    kill "$(cat "$1/pid")" 2>/dev/null || true
}

# Runs a command in the machine in directory $1.
command_in() {
    local dir="$1" job name number
    shift
    # A number that no other command uses.
    for ((number = $$; ; number++)); do
        job="$dir/jobs/$number"
        mkdir "$job" 2>/dev/null && break
    done
    {
        echo 'export HOME=/root PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin LANG=C.UTF-8 TMPDIR=/tmp'
        for name in $(compgen -e | grep -E '^(HODO_|CARGO|RUST|GLIBC_)'); do
            printf 'export %s=%q\n' "$name" "${!name}"
        done
        # Commands have no descriptors but those for input, output and errors.
        printf 'cd %q 2>/dev/null || cd /\nexec 3<&-\n' "$(pwd -P)"
        printf 'exec'
        printf ' %q' "$@"
        echo
    } >"$job/command"
    : >"$job/out"
    : >"$job/err"
    trap 'echo "kill $number" >"$dir/serial.in"; echo 130 >"$job/late"; exit 130' INT TERM HUP
    echo "run $number" >"$dir/serial.in"
    # Ends with the command. Its output is then shown up to the end.
    (
        end=$((SECONDS + limit))
        while ((SECONDS < end)); do
            [ ! -e "$job/status" ] || exit 0
            alive "$dir" || exit 0
            sleep 0.05
        done
        echo 124 >"$job/late"
        echo "kill $number" >"$dir/serial.in"
    ) &
    local waiter=$! tails=()
    tail -q -c +1 -s 0.1 -f --pid=$waiter "$job/out" &
    tails+=($!)
    tail -q -c +1 -s 0.1 -f --pid=$waiter "$job/err" >&2 &
    tails+=($!)
    # Run in the background, so that signals are handled immediately.
    wait $waiter "${tails[@]}"
    local status
    if [ -e "$job/late" ]; then
        echo "$arch-linux: ended after $limit seconds" >&2
        status=124
    else
        status="$(cat "$job/status" 2>/dev/null)" || fail "the machine has ended; see $dir/console"
    fi
    trap - INT TERM HUP
    rm -rf "$job"
    return "$status"
}

ready() {
    mkdir -p "$cache"
    # One at a time, because another call may be downloading.
    exec 9>"$cache/lock"
    flock 9
    why=
    need_tools && make_kernel && make_root || return 1
    exec 9>&-
}

verb="${1:-}"
shift || true
case "$verb" in
missing)
    ready || echo "$why"
    ;;
root)
    ready || fail "$why"
    echo "$cache/root"
    ;;
start)
    ready || fail "$why"
    alive "$machine" && exit 0
    boot "$machine" "${HODO_VM_LIFE:-14400}"
    disown
    ;;
stop)
    end "$machine"
    ;;
run)
    [ $# -gt 0 ] || fail "run which command?"
    if alive "$machine"; then
        status=0
        command_in "$machine" "$@" || status=$?
        exit "$status"
    fi
    ready || fail "$why"
    own="$(mktemp -d "$cache/vm.XXXXXX")"
    trap 'end "$own"; rm -rf "$own"' EXIT
    boot "$own" $((limit + 120))
    status=0
    command_in "$own" "$@" || status=$?
    exit "$status"
    ;;
*)
    sed -n '2,/^set /s/^# \?//p' "$0" >&2
    exit 2
    ;;
esac

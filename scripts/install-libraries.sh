#!/usr/bin/env bash
# Builds the C libraries (libhodo_ftrace, libhodo_keys, libhodo_probe_c) and installs them with their headers, and files for
# pkg-config and CMake. Also installs hodo-mem.h, which needs no library.
#
#   scripts/install-libraries.sh [--prefix DIR] [--libdir DIR] [--destdir DIR] [--built DIR]
#
#   --prefix DIR    where programs find them later: DIR/include, DIR/lib (/usr/local)
#   --libdir DIR    in place of PREFIX/lib
#   --destdir DIR   what is put before all of these now, for packages
#   --built DIR     takes libhodo_….a from this directory, where cargo has built them, and builds nothing
#
# The shared libraries have the name (SONAME) libhodo_….so.MAJOR, or 0.MINOR while MAJOR is 0. Their functions have the
# version HODO_MAJOR, or HODO_0.MINOR. Both kinds of library export what the headers declare, and nothing else. CC, LD, AR
# and OBJCOPY name the tools (cc, ld, ar, objcopy).
set -euo pipefail

prefix=/usr/local libdir='' destdir='' built=''
while [ $# -gt 0 ]; do
    case "$1" in
    --prefix | --libdir | --destdir | --built)
        [ $# -ge 2 ] || { echo "install-libraries.sh: $1 needs a directory" >&2; exit 2; }
        case "$2" in
        /*) ;;
        *) echo "install-libraries.sh: $1 $2: the directory must begin with /" >&2; exit 2 ;;
        esac
        declare "${1#--}=$2"
        shift 2
        ;;
    -h | --help) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    *) echo "install-libraries.sh: unknown word: $1 (--help lists all)" >&2; exit 2 ;;
    esac
done
libdir="${libdir:-$prefix/lib}"
cd "$(dirname "$0")/.."
cc="${CC:-cc}" ld="${LD:-ld}" ar="${AR:-ar}" objcopy="${OBJCOPY:-objcopy}" nm="${NM:-nm}"
for tool in "$cc" "$ld" "$ar" "$objcopy" "$nm"; do
    command -v "$tool" >/dev/null || { echo "install-libraries.sh: $tool is not installed" >&2; exit 1; }
done

version="$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -1)"
IFS=. read -r major minor _ <<<"$version"
interface="$major"
[ "$major" != 0 ] || interface="0.$minor"

# Crate, library, header, name of the package, what it is.
libraries=(
    "hodo-ftrace-c hodo_ftrace hodo-ftrace ftrace The function tracer of Hodoscope"
    "hodo-keys-c hodo_keys hodo-keys keys Static keys of Hodoscope"
    "hodo-probe-capi hodo_probe_c hodo-probe probe Probes of Hodoscope on the program itself"
)
if [ -z "$built" ]; then
    packages=()
    for line in "${libraries[@]}"; do packages+=(--package "${line%% *}"); done
    cargo build --quiet --release --lib "${packages[@]}"
    built="${CARGO_TARGET_DIR:-$PWD/target}/release"
fi

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
put() { # file, directory
    mkdir -p "$destdir$2"
    install -m 644 "$1" "$destdir$2/"
}

for line in "${libraries[@]}"; do
    read -r crate library header name about <<<"$line"
    for kind in a so; do
        [ -f "$built/lib$library.$kind" ] || { echo "install-libraries.sh: there is no $built/lib$library.$kind" >&2; exit 1; }
    done
    # What Rust exports is what the headers declare, and what its crates call each other by.
    "$nm" -D --defined-only "$built/lib$library.so" | sed 's/.* //; s/@.*//; /^__hodo_/d' | sort -u >"$work/exported"
    roots=()
    while read -r symbol; do roots+=(-u "$symbol"); done <"$work/exported"
    # One object that has only what these need: all else is dropped, or hidden.
    "$ld" -r --gc-sections "${roots[@]}" --whole-archive "$built/lib$library.a" -o "$work/all.o"
    "$objcopy" --strip-debug --remove-section .llvmbc --remove-section .llvmcmd \
        --keep-global-symbols="$work/exported" "$work/all.o" "$work/$library.o"
    rm -f "$work/lib$library.a"
    "$ar" rcs "$work/lib$library.a" "$work/$library.o"
    put "$work/lib$library.a" "$libdir"
    # The names that compilers call are those of the C library, too, whose version programs name. They have none here, so
    # they take the place of any.
    echo "HODO_$interface { global: hodo_*; };" >"$work/versions"
    "$cc" -shared -s -Wl,-O1,--gc-sections,-z,relro,-z,now,-z,nodelete,--as-needed \
        -Wl,-soname,"lib$library.so.$interface" -Wl,--version-script="$work/versions" \
        -Wl,--defsym="hodo_${name}_has_no_other_code=1" \
        "$work/$library.o" -o "$work/lib$library.so.$version" -lgcc_s -lpthread -ldl
    mkdir -p "$destdir$libdir"
    install -m 755 "$work/lib$library.so.$version" "$destdir$libdir/"
    ln -sf "lib$library.so.$version" "$destdir$libdir/lib$library.so.$interface"
    ln -sf "lib$library.so.$interface" "$destdir$libdir/lib$library.so"
    put "crates/$crate/include/$header.h" "$prefix/include"
    cat >"$work/hodo-$name.pc" <<END
prefix=$prefix
libdir=$libdir
includedir=\${prefix}/include

Name: hodo-$name
Description: $about
Version: $version
Cflags: -I\${includedir}
Libs: -L\${libdir} -l$library
Libs.private: -lgcc_s -lpthread -ldl
END
    put "$work/hodo-$name.pc" "$libdir/pkgconfig"
done

{
    cat <<'END'
# find_package(hodo) defines hodo::ftrace, hodo::keys and hodo::probe, and the static libraries as hodo::ftrace_static etc.
get_filename_component(_hodo_lib "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)
END
    echo "set(_hodo_include \"$prefix/include\")"
    for line in "${libraries[@]}"; do
        read -r _ library _ name _ <<<"$line"
        cat <<END
if(NOT TARGET hodo::$name)
  add_library(hodo::$name SHARED IMPORTED)
  set_target_properties(hodo::$name PROPERTIES IMPORTED_LOCATION "\${_hodo_lib}/lib$library.so.$version"
    IMPORTED_SONAME "lib$library.so.$interface" INTERFACE_INCLUDE_DIRECTORIES "\${_hodo_include}")
  add_library(hodo::${name}_static STATIC IMPORTED)
  set_target_properties(hodo::${name}_static PROPERTIES IMPORTED_LOCATION "\${_hodo_lib}/lib$library.a"
    INTERFACE_LINK_LIBRARIES "gcc_s;pthread;dl" INTERFACE_INCLUDE_DIRECTORIES "\${_hodo_include}")
endif()
END
    done
} >"$work/hodo-config.cmake"
cat >"$work/hodo-config-version.cmake" <<END
set(PACKAGE_VERSION "$version")
if(PACKAGE_FIND_VERSION VERSION_GREATER PACKAGE_VERSION)
  set(PACKAGE_VERSION_COMPATIBLE FALSE)
else()
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
  if(PACKAGE_FIND_VERSION VERSION_EQUAL PACKAGE_VERSION)
    set(PACKAGE_VERSION_EXACT TRUE)
  endif()
endif()
END
put "$work/hodo-config.cmake" "$libdir/cmake/hodo"
put "$work/hodo-config-version.cmake" "$libdir/cmake/hodo"
put crates/hodo-mem-marks/include/hodo-mem.h "$prefix/include"
echo "installed to $destdir$prefix: version $version"

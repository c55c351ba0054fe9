# Functions for scripts that need Debian's packages. Source this file.

# Installs packages, if this is allowed here. If it fails, apt-get prints the reason.
install_packages() {
    local apt=(env DEBIAN_FRONTEND=noninteractive apt-get)
    command -v apt-get >/dev/null || return 1
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null && sudo -n true 2>/dev/null || return 1
        apt=(sudo -n "${apt[@]}")
    fi
    # The list of packages is updated only if they are not known yet.
    "${apt[@]}" install -y -qq --no-install-recommends "$@" >/dev/null 2>&1 ||
        { "${apt[@]}" update -qq && "${apt[@]}" install -y -qq --no-install-recommends "$@"; } >/dev/null
}

# Packages of another release or for other machines. They are only unpacked, in the directory `cache`. `suite` is the
# release; `machines` are Debian's names for the machines, and dependencies are resolved for the first. After a failure,
# `why` has the reason.

# apt-get for these packages. It does not use or change this machine's packages.
private_apt() {
    APT_CONFIG="$cache/apt/apt.conf" "$@" 2>>"$cache/apt/log"
}

prepare_apt() {
    local mirror="${HODO_DEBIAN_MIRROR:-}" machine quoted=""
    [ -n "$mirror" ] || mirror="$(apt-get indextargets --format '$(REPO_URI)' 2>/dev/null | grep -m1 '/debian/\?$' || true)"
    [ -n "$mirror" ] || { why="apt uses no mirror of Debian here, and HODO_DEBIAN_MIRROR names none"; return 1; }
    mkdir -p "$cache"/apt/{apt.conf.d,preferences.d,state/lists/partial,cache/archives/partial}
    : >"$cache/apt/state/status"
    for machine in $machines; do
        quoted+="\"$machine\"; "
    done
    echo "deb [arch=${machines// /,} signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main" \
        >"$cache/apt/sources.list"
    cat >"$cache/apt/apt.conf" <<END
APT { Architecture "${machines%% *}"; Architectures { $quoted}; Sandbox::User "root"; };
Dir::Etc "$cache/apt";
Dir::Etc::SourceList "$cache/apt/sources.list";
Dir::Etc::SourceParts "-";
Dir::Etc::Parts "$cache/apt/apt.conf.d";
Dir::State "$cache/apt/state";
Dir::State::status "$cache/apt/state/status";
Dir::Cache "$cache/apt/cache";
Acquire::Languages "none";
Acquire::Retries "2";
Acquire::Check-Valid-Until "false";
END
    private_apt timeout 300 apt-get update -qq || { why="$suite for $machines cannot be fetched from $mirror"; return 1; }
}

# Unpacks packages into a directory, with their dependencies unless told otherwise.
unpack() {
    local into="$1" deb
    shift
    rm -rf "$cache/apt/cache/archives"
    mkdir -p "$cache/apt/cache/archives/partial" "$into"
    if [ "$1" = --alone ]; then
        shift
        (cd "$cache/apt/cache/archives" && private_apt timeout 900 apt-get download -qq "$@")
    else
        private_apt timeout 900 apt-get install -y -qq --no-install-recommends --download-only "$@"
    fi >/dev/null || { why="the packages $* cannot be fetched"; return 1; }
    for deb in "$cache"/apt/cache/archives/*.deb; do
        dpkg-deb -x "$deb" "$into" || { why="$deb cannot be unpacked"; return 1; }
    done
    rm -rf "$cache/apt/cache/archives"
}

# Prints the dynamic linker among unpacked packages. It runs their programs whatever this machine's C library is.
linker_in() {
    find "$1"/usr/lib* -name 'ld-linux-*.so.*' | head -n1
}

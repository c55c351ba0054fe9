# For scripts that need Debian's packages: to be sourced.

# Installs packages, if this may be done here. Says why not, as far as apt-get does.
install_packages() {
    local apt=(env DEBIAN_FRONTEND=noninteractive apt-get)
    command -v apt-get >/dev/null || return 1
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null && sudo -n true 2>/dev/null || return 1
        apt=(sudo -n "${apt[@]}")
    fi
    # Only where it does not know them already is it asked what there is.
    "${apt[@]}" install -y -qq --no-install-recommends "$@" >/dev/null 2>&1 ||
        { "${apt[@]}" update -qq && "${apt[@]}" install -y -qq --no-install-recommends "$@"; } >/dev/null
}

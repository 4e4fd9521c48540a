# shellcheck shell=bash disable=SC2154 # what isn't set here is install.sh's and site.sh's
# Sourced by site.sh: the Python, the pinned packages, and the code as one release.

site_python() { # sets python to one that is new enough for the role
    local least=3.9 candidate
    [ "$role" != controller ] || least=3.11
    for candidate in ${asked_python:-/usr/bin/python3 python3 python3.14 python3.13 python3.12 python3.11 python3.10 python3.9}; do
        if "$candidate" -c "import sys, venv, ensurepip; raise SystemExit(sys.version_info < (${least/./, }))" 2>/dev/null; then
            python=$(command -v "$candidate")
            return
        fi
    done
    die "--role $role needs Python $least or later with its venv module${asked_python:+, which $asked_python is not}; install it (Debian: apt-get install python3 python3-venv) or name it with --python"
}

lists() { # the pinned package lists of the role, in order
    local from=$top/etc/install/requirements
    if [ "${role:-controller}" = controller ]; then printf '%s\n' "$from-build.txt" "$from-controller.txt"; else printf '%s\n' "$from-login.txt"; fi
}

pip_in() { # VENV ARGUMENTS…: never takes a file whose sum isn't pinned
    local venv=$1 source=()
    shift
    [ -z "$wheels" ] || source=(--no-index --find-links "$wheels")
    [ "$1" = install ] || source=()
    PIP_NO_INPUT=1 "$venv/bin/python" -m pip --disable-pip-version-check -q "$@" --no-deps --no-build-isolation --require-hashes "${source[@]}"
}

release_id() { # changes with the code, the package lists and the Python
    {
        "$python" -V; echo "${slurm_series:-}"
        while IFS= read -r list; do cat "$list"; done < <(lists)
        cd "$top" && find slurm_hook accounting -type f ! -name '*.pyc' -print0 | sort -z | xargs -0 cat
    } | sha256sum | cut -c1-12
}

build_release() { # code and packages in a folder of their own; `current` is switched over last, so nobody meets half of it
    release=$prefix/releases/$(release_id)
    local before
    before=$(readlink "$root$prefix/current" 2>/dev/null || true) before=${before##*/}
    if [ -e "$root$release/complete" ]; then link_to "releases/${release##*/}" "$prefix/current"; return; fi
    say "${dry:+would }build: $root$release (code and the pinned packages, from ${wheels:-the package index})"
    changed=$((changed + 1))
    if [ -z "$dry" ]; then fill_release "$root$release"; else pick_pyslurm; fi
    link_to "releases/${release##*/}" "$prefix/current"
    [ -n "$dry" ] || drop_old_releases
}

fill_release() {
    local into=$1 list log
    rm -rf "$into"
    mkdir -p "$into/lib"
    (cd "$top" && find slurm_hook accounting -type f ! -name '*.pyc' -print0 | tar -c --null -T -) | tar -x -C "$into/lib" --no-same-owner
    chmod -R u=rwX,go=rX "$into"
    "$python" -m venv "$into/venv"
    log=$into/pip.log
    while IFS= read -r list; do
        pip_in "$into/venv" install -r "$list" >"$log" 2>&1 ||
            { { grep -E 'ERROR|Expected|Got ' "$log" || tail -n 5 "$log"; } >&2; rm -rf "$into"; die "the packages of ${list##*/} could not be installed; $(wheels_hint)"; }
    done < <(lists)
    pick_pyslurm "$into/venv"
    "$into/venv/bin/python" -m compileall -q "$into/lib" "$into/venv" >/dev/null 2>&1 || true
    [ "$python" = "$into/venv/bin/python" ] || (cd / && "$python" -m compileall -q "$into/lib") >/dev/null 2>&1 || true
    touch "$into/complete"
}

wheels_hint() {
    if [ -n "$wheels" ]; then say "is $wheels complete for this Python? fill it with --download-wheels on a host like this one"
    else say "is the package index reachable? without internet use --wheels DIR"; fi
}

drop_old_releases() { # the one before stays: something may still be running from it
    local old
    for old in "$root$prefix"/releases/*; do
        case ${old##*/} in "${release##*/}"|"$before") ;; *) act rm -rf "$old";; esac
    done
}

pick_pyslurm() { # [VENV]: the release that fits this Slurm, where there is one; everything works without
    [ "$role" = controller ] || return 0
    local line
    [ -n "$slurm_series" ] || { say "pyslurm: no Slurm here, so none is chosen; accounting is read through sacct"; return; }
    line=$(grep "^pyslurm==$slurm_series\." "$top/etc/install/requirements-pyslurm.txt" || true)
    [ -n "$line" ] || { say "pyslurm: no release for Slurm $slurm among the pinned ones ($(sed -n 's/^pyslurm==\([0-9.]*\).*/\1/p' "$top/etc/install/requirements-pyslurm.txt" | paste -sd ' ')); accounting is read through sacct, which gives the same records"; return; }
    say "pyslurm: ${line%% *} fits Slurm $slurm"
    [ -z "${1:-}" ] || { pip_in "$1" install -r "$top/etc/install/requirements-pyslurm-build.txt" &&
        pip_in "$1" install -r <(printf '%s\n' "$line"); } >"$1/pyslurm.log" 2>&1 ||
        say "pyslurm: could not be built (are Slurm's headers installed? see $1/pyslurm.log); accounting is read through sacct"
}

site_download() {
    role=${role:-controller}
    site_python
    local venv=$scratch/venv list
    "$python" -m venv "$venv"
    mkdir -p "$wheels"
    while IFS= read -r list; do
        say "fetching what ${list##*/} names"
        pip_in "$venv" download -d "$wheels" -r "$list" || die "the package index could not give the packages of ${list##*/}"
        # building tools are needed to look into packages that come as source
        case $list in *-build.txt) pip_in "$venv" install -r "$list" ;; esac
    done < <(lists)
    say "$wheels: $(find "$wheels" -type f | wc -l) files. On the other host: ./install.sh --role $role --wheels DIR"
}

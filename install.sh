#!/usr/bin/env bash
# Installs slurm-workhorse on a site, or tries it here. `./install.sh --help` lists everything.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"
set -euo pipefail
unset CDPATH
top=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# a closed stream would become whatever file is opened next
[ -e "/proc/$$/fd/1" ] || exec >/dev/null
[ -e "/proc/$$/fd/2" ] || exec 2>/dev/null
# What a cluster's modules and logins set for other Pythons, and for where their packages go, doesn't count here, nor what
# has our tools read their words otherwise
unset "${!PYTHON@}" PIP_TARGET PIP_PREFIX PIP_ROOT POSIXLY_CORRECT
export PIP_USER=0

usage() {
    cat <<'TXT'
Try it (root on Debian 12 or 13; a throwaway Slurm is started and taken down):
  ./install.sh demo [--bad gpu03,gpu11]   the whole product at work on a real Slurm
  ./install.sh test [lint|unit|integration|bench]   the checks that CI runs (default: lint, unit, integration)

Install on a site:
  ./install.sh --role controller|login|compute [options]
  ./install.sh --uninstall [--purge]
  (see ./install.sh --role help)
TXT
}

misused() { printf 'install.sh: %s\n' "$*" >&2; exit 2; }
die() { printf 'install.sh: %s\n' "$*" >&2; exit 1; }

# --- a private Python environment in the checkout -----------------------------------------------------------------

find_python() {
    local candidate
    for candidate in /usr/bin/python3 python3 python3.14 python3.13 python3.12 python3.11; do
        if "$candidate" -c 'import sys; raise SystemExit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    die "needs Python 3.11 or later for the accounting half; install it (Debian: apt-get install python3) and run again"
}

ensure_python() {
    command -v python3 >/dev/null || apt_install python3
    python=$(find_python)
    # Debian splits venv's ensurepip off into a package of its own
    "$python" -c 'import ensurepip, venv' 2>/dev/null || apt_install python3-venv
    "$python" -c 'import ensurepip, venv' 2>/dev/null || die "$python can't make a venv; install its venv package and run again"
}

apt_install() {
    [ "$(id -u)" = 0 ] || die "$* is missing and only root can install it; run: apt-get install $*"
    command -v apt-get >/dev/null || die "$* is missing and there is no apt-get here; install it with your own package manager"
    apt-get -qq update
    DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "$@" >/dev/null
}

# Dependencies of the project and of the extras named, read from pyproject.toml: one per line.
requirements() {
    "$python" - "$top/pyproject.toml" "$@" <<'PY'
import sys, tomllib
project = tomllib.load(open(sys.argv[1], "rb"))["project"]
print("\n".join(project["dependencies"] + [r for e in sys.argv[2:] for r in project["optional-dependencies"][e]]))
PY
}

# Runs COMMAND in a process group of its own, until it ends or a signal comes: that sends it SIGNAL, waits for its end,
# does CLEANUP and ends us. A plain call would wait for the command first, or leave what it started behind.
attended() { # SIGNAL CLEANUP COMMAND…
    local signal=$1 cleanup=$2 child status=0
    shift 2
    trap 'abandon 130' INT
    trap 'abandon 143' TERM
    trap 'abandon 129' HUP
    set -m
    "$@" </dev/null &
    child=$!
    set +m
    wait "$child" || status=$?
    trap - INT TERM HUP
    return "$status"
}

abandon() { # EXIT-CODE; called from a trap in attended
    trap '' INT TERM HUP
    exec 2>/dev/null # bash would tell of each child that a signal ended
    printf 'interrupted\n' || true
    kill -"$signal" -- "-$child" || true
    wait "$child" || true
    "$cleanup"
    exit "$1"
}

remove_venv() { # a dying process may still add a file for a moment
    local _
    for _ in 1 2 3 4 5; do
        if rm -rf "$venv"; then return; fi
        sleep 0.1
    done
}

# Builds .venv with the project importable from the checkout. Nothing is written outside .venv, and one that was
# interrupted half way is built anew: the stamp is written last.
ensure_venv() {
    ensure_python
    venv=$top/.venv
    local stamp=$venv/.complete wanted
    wanted=$({ "$python" -V; requirements "$@"; } | cksum)
    if [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && "$venv/bin/python" -c '' 2>/dev/null; then return; fi
    [ -w "$top" ] || die "$top can't be written by $(id -un): copy the checkout to a folder of yours and run it there"
    printf 'Building the Python environment in %s …\n' "$venv"
    rm -rf "$venv"
    attended KILL remove_venv build_venv "$@"
    printf '%s\n' "$wanted" >"$stamp"
}

build_venv() {
    local log=$venv/pip.log
    mkdir -p "$venv/tmp"
    export TMPDIR=$venv/tmp # so that what is ended half way leaves nothing elsewhere
    "$python" -m venv "$venv"
    requirements "$@" >"$venv/requirements.txt"
    "$venv/bin/python" -m pip install --disable-pip-version-check -r "$venv/requirements.txt" >"$log" 2>&1 ||
        { tail -n 5 "$log" >&2; rm -rf "$venv"; die "pip could not install the packages (see above); is the index reachable?"; }
    printf '%s\n' "$top" >"$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/checkout.pth"
    printf '#!/bin/sh\nexec "%s" -m slurm_hook.cli "$@"\n' "$venv/bin/python" >"$venv/bin/workhorse"
    chmod +x "$venv/bin/workhorse"
    rm -rf "$venv/tmp"
}

# Where byte code and other tools' caches go: into the environment, so that a run leaves nothing in the checkout.
find_cache() {
    cache=$venv
    [ -w "$venv" ] && return
    cache=$(mktemp -d)
    trap tidy_up EXIT
}

cache='' open=$top
tidy_up() {
    [ "$cache" = "$venv" ] || rm -rf "$cache"
    [ "$open" = "$top" ] || rmdir "$open"
}

# Test users run our commands too, and can't reach a checkout in /root, say. Such a one gets a second path, which only the
# tests see. Sets `open` to the path that everybody can take.
open_checkout() {
    open=$top
    if anybody_sees; then return; fi
    trap tidy_up EXIT
    open=$(mktemp -d /tmp/workhorse-checkout-XXXXXX)
    chmod 755 "$open"
    anybody_sees || die "many tests run as ordinary users, and those can't read $top;" \
        "do: chmod -R go+rX '$top' (and chmod o+x each folder above it), or clone it to a folder that everybody can read"
}

anybody_sees() {
    local look='cd / && cd "$1" && cat pyproject.toml slurm_hook/cli/group.py .venv/pyvenv.cfg >/dev/null && [ -x .venv/bin/python ]'
    seen_from setpriv --reuid=65534 --regid=65534 --clear-groups -- sh -c "$look" sh "$open" 2>/dev/null
}

seen_from() { # COMMAND…, run in the checkout as $open shows it
    local mount='mount --bind "$1" "$2" && cd "$2" && shift 2 && exec "$@"'
    if [ "$open" = "$top" ]; then (cd "$top" && exec "$@"); else unshare --mount sh -c "$mount" sh "$top" "$open" "$@"; fi
}

in_venv() { # PROGRAM ARGUMENTS…
    local program=$open/.venv/bin/$1
    shift
    seen_from env PYTHONPYCACHEPREFIX="$cache/pycache" RUFF_CACHE_DIR="$cache/ruff" MYPY_CACHE_DIR="$cache/mypy" \
        HYPOTHESIS_STORAGE_DIRECTORY="$cache/hypothesis" PATH="$open/.venv/bin:$PATH" "$program" "$@"
}

ensure_slurm() { attended TERM : in_venv python -m tests.sandbox packages; }

# --- demo and test ------------------------------------------------------------------------------------------------

need_root() { [ "$(id -u)" = 0 ] || die "$1 starts a Slurm of its own and makes test users: run it as root"; }

run_demo() {
    ensure_python
    (cd "$top" && "$python" -B -m tests.demo_options "$@") || exit
    case " $* " in *" --help "* | *" -h "*) return;; esac
    need_root demo
    umask 022 # its jobs run as other users
    ensure_venv accounting test
    find_cache
    ensure_slurm
    cd "$top"
    export PYTHONPYCACHEPREFIX="$cache/pycache" PATH="$venv/bin:$PATH"
    exec "$venv/bin/python" -m tests.demo "$@"
}

run_lint() {
    in_venv ruff check .
    in_venv ruff format --check .
    in_venv mypy
    in_venv lint-imports --no-cache
}

# Runs FOLDER, or what the other words name of it.
run_pytest() {
    local folder=$1 word
    shift
    for word in "$@"; do
        if [ -e "$top/${word%%::*}" ]; then folder=; fi
    done
    # shellcheck disable=SC2086 # some folders of ours
    in_venv python -m pytest -p no:cacheprovider --benchmark-storage="file://$cache/benchmarks" $folder "$@"
}

run_test() {
    local part=${1:-all}
    [ $# = 0 ] || shift
    case $part in
        all|integration|bench) need_root "test $part";;
        lint|unit) ;;
        -h|--help) usage; return;;
        *) usage >&2; misused "test $part: must be lint, unit, integration or bench";;
    esac
    umask 022 # test users read what is made here
    # the tests' folders get into settings and units, where such names can't be
    case ${TMPDIR:-} in *[!A-Za-z0-9._/+-]*) unset TMPDIR;; esac
    ensure_venv accounting test
    find_cache
    case $part in
        lint) run_lint;;
        unit) run_pytest tests/unit -n 2 "$@";;
        integration)
            ensure_slurm
            open_checkout
            run_pytest "tests/process tests/integration" -n 2 "$@";;
        bench) run_pytest tests/bench "$@";;
        all)
            ensure_slurm
            run_lint
            open_checkout
            # two processes, each with a Slurm of its own: most tests wait for Slurm, not for the processor
            run_pytest "tests/unit tests/process tests/integration" -n 2 "$@";;
    esac
}

case ${1:-} in
    demo) shift; run_demo "$@";;
    test) shift; run_test "$@";;
    ""|-h|--help) usage;;
    --*)
        # shellcheck source=etc/install/site.sh
        . "$top/etc/install/site.sh"
        site_main "$@";;
    *) usage >&2; misused "$1: unknown";;
esac

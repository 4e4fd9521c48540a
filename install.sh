#!/usr/bin/env bash
# Installs slurm-workhorse on a site, or tries it here. `./install.sh --help` lists everything.
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# a closed stream would become whatever file is opened next
[ -e "/proc/$$/fd/1" ] || exec >/dev/null
[ -e "/proc/$$/fd/2" ] || exec 2>/dev/null

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
    trap 'rm -rf "$venv"; exit 130' INT TERM
    local log=$venv/pip.log
    "$python" -m venv "$venv"
    requirements "$@" >"$venv/requirements.txt"
    "$venv/bin/python" -m pip install --disable-pip-version-check -r "$venv/requirements.txt" >"$log" 2>&1 ||
        { tail -n 5 "$log" >&2; rm -rf "$venv"; die "pip could not install the packages above; is the package index reachable?"; }
    printf '%s\n' "$top" >"$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/checkout.pth"
    printf '#!/bin/sh\nexec "%s" -m slurm_hook.cli "$@"\n' "$venv/bin/python" >"$venv/bin/workhorse"
    chmod +x "$venv/bin/workhorse"
    printf '%s\n' "$wanted" >"$stamp"
    trap - INT TERM
}

# Where byte code and other tools' caches go: into the environment, so that a run leaves nothing in the checkout.
find_cache() {
    cache=$venv
    [ -w "$venv" ] && return
    cache=$(mktemp -d)
    trap 'rm -rf "$cache"' EXIT
}

in_venv() {
    cd "$top" && PYTHONPYCACHEPREFIX="$cache/pycache" RUFF_CACHE_DIR="$cache/ruff" MYPY_CACHE_DIR="$cache/mypy" \
        HYPOTHESIS_STORAGE_DIRECTORY="$cache/hypothesis" PATH="$venv/bin:$PATH" "$@"
}

# --- demo and test ------------------------------------------------------------------------------------------------

need_root() { [ "$(id -u)" = 0 ] || die "$1 starts a Slurm of its own and makes test users: run it as root"; }

run_demo() {
    ensure_python
    (cd "$top" && "$python" -B -m tests.demo_options "$@") || exit
    case " $* " in *" --help "* | *" -h "*) return;; esac
    need_root demo
    ensure_venv accounting test
    find_cache
    (in_venv "$venv/bin/python" -m tests.sandbox packages) || exit 1
    cd "$top"
    export PYTHONPYCACHEPREFIX="$cache/pycache" PATH="$venv/bin:$PATH"
    exec "$venv/bin/python" -m tests.demo "$@"
}

run_lint() {
    in_venv "$venv/bin/ruff" check .
    in_venv "$venv/bin/ruff" format --check .
    in_venv "$venv/bin/mypy"
}

# Runs FOLDER, or what the other words name of it.
run_pytest() {
    local folder=$1 word
    shift
    for word in "$@"; do
        if [ -e "$top/${word%%::*}" ]; then folder=; fi
    done
    # shellcheck disable=SC2086 # one or two folders of ours
    in_venv "$venv/bin/python" -m pytest -p no:cacheprovider --benchmark-storage="file://$cache/benchmarks" $folder "$@"
}

run_test() {
    local part=${1:-all}
    [ $# = 0 ] || shift
    case $part in
        all|integration|bench) need_root "test $part";;
        lint|unit) ;;
        *) usage >&2; misused "test $part: must be lint, unit, integration or bench";;
    esac
    ensure_venv accounting test
    find_cache
    case $part in
        lint) run_lint;;
        unit) run_pytest tests/unit "$@";;
        integration) (in_venv "$venv/bin/python" -m tests.sandbox packages) && run_pytest tests/integration -n 2 "$@";;
        bench) run_pytest tests/bench "$@";;
        all)
            (in_venv "$venv/bin/python" -m tests.sandbox packages)
            run_lint
            # two processes, each with a Slurm of its own: most tests wait for Slurm, not for the processor
            run_pytest "tests/unit tests/integration" -n 2 "$@";;
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

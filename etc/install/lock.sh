#!/bin/sh
# Writes the pinned package lists anew from pyproject.toml: exact versions, with the sha256 of every file that the index
# has for them (any Python and machine). Needs the package index. `lock.sh [PYTHON3.9 [PYTHON3.11]]`
set -eu
here=$(cd "$(dirname "$0")" && pwd)
login_python=${1:-python3.9} scorer_python=${2:-python3.11}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

wanted() { # EXTRAS…: dependencies of the project and of these extras
    "$scorer_python" - "$here/../../pyproject.toml" "$@" <<'PY'
import sys, tomllib
project = tomllib.load(open(sys.argv[1], "rb"))["project"]
print("\n".join(project["dependencies"] + [r for e in sys.argv[2:] for r in project["optional-dependencies"][e]]))
PY
}

compile() { # PYTHON LIST; what is wanted comes from stdin
    cat >"$work/wanted.in"
    rm -rf "$work/venv" "$work/list"
    "$1" -m venv "$work/venv"
    "$work/venv/bin/pip" install -q --disable-pip-version-check 'pip<26' pip-tools
    "$work/venv/bin/pip-compile" -q --generate-hashes --strip-extras --no-header --no-annotate --no-emit-index-url \
        --no-emit-trusted-host --no-emit-find-links --allow-unsafe --unsafe-package pip --output-file "$work/list" "$work/wanted.in"
    {
        echo "# Written by etc/install/lock.sh from pyproject.toml; don't edit."
        # pip itself is never pinned: the one that comes with Python does the work
        sed -e '/^#/d' -e '/^$/d' "$work/list" | awk '/^[a-z]/ {skip = /^pip==/} !skip'
    } >"$here/$2"
}

# a login or compute node may have nothing newer than Python 3.9
wanted | compile "$login_python" requirements-login.txt
wanted accounting | compile "$scorer_python" requirements-controller.txt
# one package comes as source only: what builds it is pinned too
echo setuptools | compile "$scorer_python" requirements-build.txt
printf '%s\n' cython packaging wheel | compile "$scorer_python" requirements-pyslurm-build.txt

# pyslurm fits one Slurm series only, so its list has the newest release of each; installing takes the line that fits.
# Its metadata can't be had without that Slurm; pip tells the sum of a file when it differs from the one asked for.
{
    echo "# Written by etc/install/lock.sh from the package index; don't edit."
    pip() { "$work/venv/bin/pip" --disable-pip-version-check "$@"; }
    for version in $(pip index versions pyslurm 2>/dev/null | sed -n 's/^Available versions: //p' | tr -d , | tr ' ' '\n' |
        awk -F. '$1 >= 20 && !seen[$1 "." $2]++'); do
        printf 'pyslurm==%s --hash=sha256:%064d\n' "$version" 0 >"$work/one"
        sum=$(pip download --no-deps --require-hashes -d "$work" -r "$work/one" 2>&1 | sed -n 's/.*Got *\([0-9a-f]\{64\}\).*/\1/p')
        echo "pyslurm==$version --hash=sha256:$sum"
    done
} >"$here/requirements-pyslurm.txt"

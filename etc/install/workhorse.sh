#!/bin/sh
# The command of slurm-workhorse: runs the release that `current` points to, so that an upgrade is one switch of a link.
self=$(readlink -f "$0") && here=${self%/bin/workhorse}
exec "$here/current/venv/bin/python" -I -c \
    'import sys; sys.path.insert(0, sys.argv.pop(1)); from slurm_hook.cli import main; main()' "$here/current/lib" "$@"

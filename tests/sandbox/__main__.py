"""`python3 -m tests.sandbox`: bring a sandbox up and leave it running, use it from a shell, take it down."""

import argparse
import shlex
import signal
import sys
from pathlib import Path
from types import FrameType

from . import claims, cluster, keeper, packages, procs
from .errors import SandboxError

MAX_NODES = 128


def roots() -> list[Path]:
    """Directories of the sandboxes that `up` left running, and of all whose keeper was killed."""
    live = [Path(name.removeprefix("live/")) for name in claims.held() if name.startswith("live/")]
    here = [path for folder in keeper.TEMP_FOLDERS for path in folder.glob(f"{keeper.TEMP_PREFIX}*")]
    known = {path.resolve() for path in (*live, *here) if (path / keeper.STATE).exists()}
    return sorted(path for path in known if _left(path))


def _left(root: Path) -> bool:
    try:
        known = cluster.state(root)
    except SandboxError as error:
        print(f"sandbox: passed over: {error}", file=sys.stderr)
        return False
    return known["detached"] or not procs.alive(known["pid"], known["started"])


def ours() -> list[Path]:
    """Those of `roots` that were started from this checkout: others are for others to end, unless named."""
    return [root for root in roots() if cluster.state(root)["checkout"] == str(cluster.REPO)]


def chosen(named: str | None) -> Path:
    """The directory named with --dir, or the only sandbox of this checkout."""
    if named is not None:
        return Path(named).resolve()
    found = ours()
    if len(found) == 1:
        return found[0]
    if found:
        raise SandboxError(f"Several sandboxes are up; name one with --dir: {', '.join(map(str, found))}")
    others = roots()
    if others:
        raise SandboxError(
            f"No sandbox of this checkout is up. To take another's, name it with --dir: {', '.join(map(str, others))}"
        )
    raise SandboxError("No sandbox is up. Start one with: python3 -m tests.sandbox up")


def up(args: argparse.Namespace) -> None:
    """Bring one up, print its directory, leave it running."""
    if not 1 <= args.nodes <= MAX_NODES:
        raise SandboxError(f"--nodes {args.nodes}: from 1 to {MAX_NODES}; each is a slurmd on this machine.")
    sandbox = cluster.Sandbox(nodes=args.nodes, cluster=args.cluster, extra_conf=args.conf_line, dir=args.dir, detached=True)
    sandbox.up()
    print(sandbox.root)
    there = f"--dir {shlex.quote(str(sandbox.root))}"
    print(
        f'use it: eval "$(python3 -m tests.sandbox env {there})"; end it: python3 -m tests.sandbox down {there}', file=sys.stderr
    )


def down(args: argparse.Namespace) -> None:
    """Take one (or all) down."""
    for root in ours() if args.all else [chosen(args.dir)]:
        cluster.take_down(root)


def env(args: argparse.Namespace) -> None:
    """Print export lines for a shell."""
    for name, value in cluster.attach(chosen(args.dir)).env.items():
        # The mark stays out: what runs in that shell isn't the sandbox's to kill. PATH and locale are the shell's own.
        if name not in (procs.MARK, "PATH", "LANG", "LC_ALL"):
            print(f"export {name}={shlex.quote(value)}")


def show(_args: argparse.Namespace) -> None:
    """List the sandboxes that run."""
    for root in roots():
        known = cluster.state(root)
        health = "up" if procs.alive(known["pid"], known["started"]) else "keeper died: take it down"
        print(root, f"nodes={len(known['nodes'])}", f"pid={known['pid']}", health)


def install(_args: argparse.Namespace) -> None:
    """Install the packages that are missing."""
    print("installed:", *(packages.ensure() or ["nothing was missing"]))


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="python3 -m tests.sandbox", description="A throwaway Slurm on this machine.")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    made = {}
    for function, name in ((up, "up"), (down, "down"), (env, "env"), (show, "list"), (install, "packages")):
        made[name] = commands.add_parser(name, help=function.__doc__, description=function.__doc__)
        made[name].set_defaults(function=function)
    for name in ("up", "down", "env"):
        made[name].add_argument("--dir", metavar="D", help="the sandbox's directory (default: one below /tmp)")
    made["up"].add_argument("--nodes", type=int, default=16, metavar="N", help="number of nodes (default 16)")
    made["up"].add_argument("--cluster", default="sandbox", metavar="NAME", help="cluster name (default sandbox)")
    made["up"].add_argument("--conf-line", action="append", default=[], metavar="LINE", help="a line for slurm.conf")
    made["down"].add_argument("--all", action="store_true", help="all sandboxes that `up` left running from this checkout")
    return top


def _exit(number: int, _frame: FrameType | None) -> None:
    """Let a signal end us as an exception does, so that what was changed for a while is put back."""
    raise SystemExit(128 + number)


def main() -> int:
    """Run the command; errors become one message and exit code 1."""
    args = parser().parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # not where nohup has us ignore it
            signal.signal(number, _exit)
    try:
        args.function(args)
    except SandboxError as error:
        print(f"sandbox: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


if __name__ == "__main__":
    sys.exit(main())

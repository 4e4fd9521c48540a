"""A host that an installation may change as it likes: this machine, with its system folders in an overlay of their own.

A mount namespace holds overlays over its FOLDERS; what is written there is in memory
and gone with the namespace. Needs root.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

FOLDERS = ("/etc", "/opt", "/usr/local", "/var/lib", "/var/log", "/home", "/root")
_MOUNT = """
set -eu
mount --make-rprivate /
scratch=$1 shared=$2 seen=$3; shift 3
mount -t tmpfs tmpfs "$scratch"
for folder do
    name=$(printf %s "$folder" | tr / _)
    mkdir "$scratch/$name" "$scratch/$name/upper" "$scratch/$name/work"
    mount -t overlay overlay -o "lowerdir=$folder,upperdir=$scratch/$name/upper,workdir=$scratch/$name/work" "$folder"
done
[ -z "$seen" ] || { mkdir -p "$seen"; mount --bind "$shared" "$seen"; }
rm -rf /var/lib/workhorse /etc/workhorse /opt/workhorse /var/log/workhorse # what runs of others may have left on this machine
echo ready
exec cat
"""


class BareHost:
    """Use as context manager; `run` executes inside.

    shared, seen_as: a folder that this host and others see under a name of its own, as a shared file system.
    """

    def __init__(self, scratch: Path, shared: Path | None = None, seen_as: str = "") -> None:
        self.scratch, self.shared, self.seen_as = scratch, shared, seen_as

    def __enter__(self) -> BareHost:
        if self.seen_as:
            self._claim = open(f"/run/lock/workhorse-tests{self.seen_as.replace('/', '-')}", "w")
            fcntl.flock(self._claim, fcntl.LOCK_SH)
        argv = ["unshare", "--mount", "sh", "-c", _MOUNT, "sh", str(self.scratch), str(self.shared or ""), self.seen_as, *FOLDERS]
        self._holder = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert self._holder.stdout
        line = self._holder.stdout.readline()
        if line != "ready\n":
            self._holder.communicate()
            raise OSError(f"no private mounts here (root in a container without CAP_SYS_ADMIN?): {line.strip()}")
        return self

    def __exit__(self, *_: object) -> None:
        self._holder.communicate(timeout=20)
        if self.seen_as:
            with self._claim, suppress(OSError):  # another host still mounts there, or it was there before
                fcntl.flock(self._claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
                Path(self.seen_as).rmdir()  # where it was mounted, empty outside

    def run(
        self, argv: Iterable[str | Path], *, check: bool = True, timeout: float = 300, env: dict[str, str] | None = None,
        input: str | None = None, cwd: str | Path | None = None,
    ) -> subprocess.CompletedProcess[str]:  # fmt: skip
        """Run a command on the host and return it; raises with its output when it fails (unless check=False)."""
        enter = ["nsenter", "--target", str(self._holder.pid), "--mount", "--root", f"--wdns={cwd or self.scratch}", "--"]
        words = [*enter, *(str(word) for word in argv)]
        # a host has nothing of what the tests' own environment says of Python
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} if env is None else env
        done = subprocess.run(words, capture_output=True, text=True, timeout=timeout, env=clean, input=input, check=False)
        assert not check or done.returncode == 0, f"{words[len(enter) :]} failed ({done.returncode}):\n{done.stdout}{done.stderr}"
        return done

    def unpack(self, tar: Path) -> None:
        """Put a tar's files in their places below /."""
        self.run(["tar", "-xf", tar, "-C", "/"])

    def files(self) -> dict[str, str]:
        """What is there that the machine underneath doesn't have so: path → kind, mode, owner, size and link target.

        What was removed shows in an overlay as a device without a name of its own, and is left out.
        """
        found = {}
        for folder in FOLDERS:
            upper = self.scratch / folder.replace("/", "_") / "upper"
            listing = self.run(["find", upper, "-mindepth", "1", "-printf", "%P\t%y %m %u %s %l\n"]).stdout
            rows = (line.split("\t", 1) for line in listing.splitlines())
            found.update({f"{folder}/{path}": about for path, about in rows if not about.startswith("c ")})
        return found

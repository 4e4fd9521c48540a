"""All nodes in one RPC: Slurm's own library, called in a child process.

`scontrol show node` costs two, as it asks for the partitions as well, which the published files tell. The child uses
three functions of Slurm's public API (slurm_init, slurm_load_node, slurm_print_node_info_msg) and prints what scontrol
prints. It is a process of its own because the library ends its process where it can't go on; it is made early, while
there is little to copy, and gets ready while others work: as soon as the sbatch that was started has found its library, it
takes the same.
"""

from __future__ import annotations

import posix as os

from ..common.errors import SlurmError
from ..common.record import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

SHOW_MIXED = 0x0008  # slurm.h: nodes that are partly allocated are called MIXED, as scontrol does
RTLD_LAZY, RTLD_GLOBAL = 0x001, 0x100  # Slurm's plugins take their symbols from the program that loads them
LOOK_AGAIN = 0.0003  # seconds
MAX_OUTPUT = 64 * 1024 * 1024


def library_of(pid: int) -> str:
    """The path of Slurm's library in a running program of Slurm, "" where it has none or can't be looked at."""
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as file:
            text = file.read()
    except OSError:
        return ""
    at = text.find("/libslurm")
    line = text[text.rfind("\n", 0, at) + 1 : text.find("\n", at)]
    path = line[line.find("/") :]
    return path if at >= 0 and ".so" in path and not path.endswith("(deleted)") else ""


class Helper:
    """The child: its process, where it is told what to do, where its end is seen, and where it writes to."""

    def __init__(self, limit: float, program: int = 0) -> None:
        """Make the child; it lives at most `limit` seconds. program: of Slurm, just started, whose library it may take."""
        self.memory = os.memfd_create("nodes")
        orders, self.orders = os.pipe()
        self.ended, end = os.pipe()
        self.asked = False
        self.pid = os.fork()
        if self.pid == 0:
            _work(orders, self.memory, limit, (self.orders, self.ended), program)
        os.close(orders)
        os.close(end)

    def load(self, library: str) -> None:
        """Get ready with this library, unless that is done."""
        self._tell(library.encode("utf-8", "surrogateescape") + b"\n")

    def ask(self) -> None:
        """Ask slurmctld."""
        self.asked = True
        self._tell(b"ask\n")

    def _tell(self, order: bytes) -> None:
        try:
            os.write(self.orders, order)
        except OSError as err:  # it has ended: that is seen when its answer is wanted
            if self.pid == 0:
                raise SlurmError("the child has ended") from err

    def output(self, seconds: float) -> str:
        """What it printed, "" where it failed. Raises SlurmError when it doesn't end in time."""
        import select  # noqa: PLC0415

        if seconds <= 0 or not select.select([self.ended], [], [], seconds)[0]:
            raise SlurmError("Slurm did not answer in time")
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        size = os.fstat(self.memory).st_size
        if status != 0 or size > MAX_OUTPUT:
            return ""
        return os.pread(self.memory, size, 0).decode("utf-8", "surrogateescape")

    def end(self) -> None:
        """End the child; does nothing where it has ended."""
        if self.orders < 0:
            return
        for descriptor in (self.orders, self.ended, self.memory):
            os.close(descriptor)
        self.orders = -1
        if self.pid:
            os.kill(self.pid, 9)
            os.waitpid(self.pid, 0)


def _work(orders: int, memory: int, limit: float, others: tuple[int, int], program: int) -> None:
    """The child's life; never returns. No exception may get to the code that forked."""
    code = 1
    try:
        import _signal  # type: ignore[import-not-found]  # noqa: PLC0415

        _signal.setitimer(_signal.ITIMER_REAL, max(0.01, limit))
        null = os.open("/dev/null", os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(null, standard)  # who waits for our parent's words must not wait for ours
        for descriptor in others:
            os.close(descriptor)
        code = _obey(orders, memory, program)
    finally:
        os._exit(code)


def _obey(orders: int, memory: int, program: int) -> int:
    text = b""
    slurm: Any = None
    import _ctypes  # noqa: F401, PLC0415 - while there is nothing else to do

    path = _library_seen(program, orders)
    if path:
        slurm = _started(path)
    while True:
        part = os.read(orders, 4096)
        if not part:
            return 0  # not wanted
        text += part
        while b"\n" in text:
            line, _, text = text.partition(b"\n")
            if line == b"ask":
                return _show_nodes(slurm, memory)
            slurm = slurm or _started(line.decode("utf-8", "surrogateescape"))


def _library_seen(program: int, orders: int) -> str:
    """The library of a program that is just starting; "" where orders come before it has one."""
    import select  # noqa: PLC0415

    pause = LOOK_AGAIN
    while program and not select.select([orders], [], [], pause)[0]:
        path = library_of(program)
        if path:
            return path
        pause = min(2 * pause, 0.01)
    return ""


def _started(path: str) -> Library:
    slurm = Library(path)
    slurm.call("slurm_init", None)
    return slurm


class Library:
    """A C library, without the module ctypes: `_ctypes` alone costs a tenth of its import."""

    def __init__(self, path: str) -> None:
        import _ctypes  # noqa: PLC0415

        self._ctypes = _ctypes
        self.handle = _ctypes.dlopen(path, RTLD_LAZY | RTLD_GLOBAL)
        simple = _ctypes._SimpleCData
        self.pointer = type("pointer", (simple,), {"_type_": "P"})
        self.long = type("long", (simple,), {"_type_": "l"})
        self.int = type("int", (simple,), {"_type_": "i"})
        self.short = type("short", (simple,), {"_type_": "H"})

    def call(self, name: str, *arguments: Any, gives: Any = None) -> Any:
        flags = {"_flags_": self._ctypes.FUNCFLAG_CDECL, "_restype_": gives or self.int}
        function = type("function", (self._ctypes.CFuncPtr,), flags)
        return function(self._ctypes.dlsym(self.handle, name))(*arguments)

    def reference(self, value: Any) -> Any:
        return self._ctypes.byref(value)


def _show_nodes(slurm: Any, memory: int) -> int:
    """slurm_load_node(0, &message, SHOW_MIXED), then slurm_print_node_info_msg(file, message, one line each)."""
    message = slurm.pointer()
    if slurm.call("slurm_load_node", slurm.long(0), slurm.reference(message), slurm.short(SHOW_MIXED)) != 0:
        return 2
    stream = slurm.pointer(slurm.call("fdopen", slurm.int(memory), b"w", gives=slurm.pointer))
    slurm.call("slurm_print_node_info_msg", stream, message, slurm.int(1))
    return 0 if slurm.call("fflush", stream) == 0 else 3

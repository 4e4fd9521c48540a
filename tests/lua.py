"""Lua 5.1, the library that Slurm's plugins load, to run a plugin's functions without a slurmctld."""

from __future__ import annotations

import ctypes
import ctypes.util

_TOP_OF_STACK = -1


def run(code: str) -> str:
    """What a chunk returns, as text. Raises RuntimeError with Lua's message."""
    lib = ctypes.CDLL("liblua5.1.so.0")
    lib.luaL_newstate.restype = ctypes.c_void_p
    lib.lua_tolstring.restype = ctypes.c_char_p
    state = ctypes.c_void_p(lib.luaL_newstate())
    try:
        lib.luaL_openlibs(state)
        text = code.encode()
        failed = lib.luaL_loadbuffer(state, text, ctypes.c_size_t(len(text)), b"=test") or lib.lua_pcall(state, 0, 1, 0)
        said = (lib.lua_tolstring(state, _TOP_OF_STACK, None) or b"").decode("utf-8", "replace")
    finally:
        lib.lua_close(state)
    if failed:
        raise RuntimeError(said)
    return said

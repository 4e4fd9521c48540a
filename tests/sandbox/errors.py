"""The one exception that the sandbox raises on purpose."""


class SandboxError(RuntimeError):
    """Something a reader can act on: the message names what failed, why, and what to do."""

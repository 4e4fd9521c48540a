"""A throwaway real Slurm on one machine: `with Sandbox(nodes=16) as sb: …`, or `python -m tests.sandbox up`."""

from .cluster import Sandbox
from .errors import SandboxError

__all__ = ["Sandbox", "SandboxError"]

"""The `workhorse` command and what each of its commands does on the submit side."""

from .group import main, workhorse

__all__ = ["main", "workhorse"]

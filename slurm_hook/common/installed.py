"""What is on this host: what install.sh noted down beside the program, and whether an admin has switched us off."""

from __future__ import annotations

import os
import pwd

from .record import TYPE_CHECKING

if TYPE_CHECKING:
    from .config import Settings

DISABLE_NAME = "disable"  # beside the settings file: while it exists, dispatch steps aside as submissions do
DEFAULT_USER = "workhorse"


def note() -> dict[str, str]:
    """The note and the prefix; empty where the program runs from a checkout or a plain pip installation."""
    folder = os.path.dirname(os.path.realpath(__file__))
    while folder != "/":
        path = os.path.join(folder, "install.conf")
        if os.path.isfile(path) and os.path.isfile(os.path.join(folder, "manifest")):
            with open(path, encoding="utf-8") as file:
                lines = (line.rstrip("\n").partition("=") for line in file)
                return {"prefix": folder, **{name: value for name, _, value in lines}}
        folder = os.path.dirname(folder)
    return {}


def service_user() -> str:
    """Name of the account that collects and dispatches."""
    return note().get("user", DEFAULT_USER)


def trusted_uids() -> list[int]:
    """Whose published files are believed on the command line: root's, the service user's and one's own."""
    try:
        return [0, os.geteuid(), pwd.getpwnam(service_user()).pw_uid]
    except KeyError:
        return [0, os.geteuid()]


def disabled(settings: Settings) -> bool:
    """An admin has put a file named `disable` beside the settings."""
    return os.path.exists(disable_path(settings))


def disable_path(settings: Settings) -> str:
    """The file that switches us off on this host."""
    return os.path.join(os.path.dirname(settings.source), DISABLE_NAME)

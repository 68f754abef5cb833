"""Checks before a scheduler becomes durable."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from stat import S_IWGRP, S_IWOTH
from typing import Any

from paceline.workers_compat.config import config
from paceline.workers_compat.config.settings import is_on

logger = logging.getLogger("distributed.scheduler")

#: Mode bits of a folder to which others than its owner can write.
WRITABLE_BY_OTHERS = S_IWGRP | S_IWOTH


class DurableError(Exception):
    """A scheduler cannot be durable as configured."""


def check(options: Mapping[str, Any]) -> None:
    """Check that a scheduler with these options of ``Scheduler`` can be durable.

    Raises:
        ConfigError: a value of the configuration is invalid.
        DurableError: it cannot.
    """
    config.check()
    hosts = _listed(options.get("host") or "")
    default = config.get("distributed.comm.default-scheme") or "tcp"
    schemes = set(_listed(options.get("protocol") or default))
    schemes |= {host.split("://")[0] for host in hosts if "://" in host}
    is_encrypted = options.get("security") or is_on("distributed.comm.require-encryption", False)
    if is_encrypted or schemes != {"tcp"}:
        raise DurableError(
            "only tcp:// connections can be kept: the keys of TLS and the state of other protocols "
            "are in the scheduler process, which may die"
        )
    if options.get("journal"):
        raise DurableError("cannot be combined with --journal")


def _listed(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def expanded(folder: str | os.PathLike[str]) -> Path:
    """Return the path of the folder of a log, in which ~ is the home folder."""
    return Path(os.path.expanduser(folder))


def make_folder(folder: Path) -> None:
    """Create the folder of a log if it does not exist. Warn if its mode lets others write to it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileExistsError:
        kind = "a link to a folder that does not exist" if folder.is_symlink() else "not a folder"
        raise DurableError(f"{folder} is {kind}") from None
    if folder.stat().st_mode & WRITABLE_BY_OTHERS:
        logger.warning(
            "Users other than its owner may be able to write to %s, and thereby to run code in the "
            "scheduler, which unpickles the log. Use a folder with mode 0700",
            folder,
        )


def lock(folder: Path) -> int:
    """Lock the folder for this process. Return the descriptor that holds the lock."""
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise DurableError(f"another scheduler uses {folder}") from None
    return descriptor

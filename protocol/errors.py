"""Exceptions of the protocol. Which end is at fault decides how they are handled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class ProtocolError(Exception):
    """Base class of this package's exceptions."""


class RemoteProtocolError(ProtocolError):
    """A message cannot be received: close the connection and log it.

    Attributes:
        messages: complete messages (lists of frames) that were read together with the invalid data
            and precede it.
    """

    messages: Sequence[Any] = ()


class StorageError(RemoteProtocolError):
    """This end has no memory or disk space for a large frame, which may be valid."""


class LocalProtocolError(ProtocolError):
    """This end tried to send what the connection does not allow or cannot encode: a bug here."""

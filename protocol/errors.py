"""Exceptions of the protocol. Which end is at fault decides how they are handled."""

from __future__ import annotations


class ProtocolError(Exception):
    """Base class of this package's exceptions."""


class RemoteProtocolError(ProtocolError):
    """The peer violated the protocol: close the connection and log it."""


class LocalProtocolError(ProtocolError):
    """This end tried to send what the connection does not allow or cannot encode: a bug here."""

"""Errors of connecting."""

from __future__ import annotations


class FatalConnectError(ConnectionError):
    """Connecting failed, and a retry would fail, too, for example with a rejected certificate."""


class EncryptionRequiredError(FatalConnectError, RuntimeError):
    """Raised if ``distributed.comm.require-encryption`` is set; stock raises RuntimeError."""

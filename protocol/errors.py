"""Errors of the protocol: whose fault it is decides what happens.

Must not know: sockets, logging, what the messages mean.
"""

from __future__ import annotations


class ProtocolError(Exception):
    """Base class of what this package raises."""


class RemoteProtocolError(ProtocolError):
    """The peer broke the rules of framing or of the connection: it is dropped, with a log line."""


class LocalProtocolError(ProtocolError):
    """We were about to send what the connection does not allow, or cannot carry: a bug of ours."""

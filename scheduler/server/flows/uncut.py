"""Values without the cuts that dask makes in large buffers: a client copies the pieces of a buffer into one, and need not
copy a buffer that comes whole.

The value stays closed: its header only loses what it says of the cuts. Compressed pieces stay as they are.

Must not know: where pieces lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TypeVar

from paceline.protocol.payload import Payload, payload_header, serialized_payload

T = TypeVar("T")


def uncut(header: bytes, n_frames: int) -> tuple[bytes, tuple[int, ...]] | None:
    """Header of a "serialized" value whose pieces, one behind the other, are whole buffers again; and how many pieces each has.

    Args:
        header: its header frame.
        n_frames: how many pieces there are.

    Returns:
        None where it has no cuts, or where they cannot be undone.

    Raises:
        RemoteProtocolError: the header cannot be read.
    """
    fields = payload_header(Payload("serialized", header))
    counts = fields.pop("split-num-sub-frames", ())
    offsets = fields.pop("split-offsets", ())
    if not counts or any(fields.pop("compression", None) or ()):
        return None
    position = 0
    for count, offset in zip(counts, offsets, strict=True):
        if offset != position or count < 1:
            return None
        position += count
    if position != n_frames:
        return None
    return serialized_payload(fields, [b""] * len(counts)).header, tuple(counts)


def groups(counts: Sequence[int], of: Sequence[T]) -> list[Sequence[T]]:
    """``of`` in groups of so many."""
    stops = list(accumulate(counts))
    return [of[stop - count : stop] for count, stop in zip(counts, stops, strict=True)]

"""The replacement of a frame that an observer did not keep.

It has a module because mypyc cannot compile a subclass of ``bytes``.
"""

from __future__ import annotations


class OmittedFrame(bytes):
    """Replaces a frame that was not kept; it is empty.

    Attributes:
        omitted_nbytes: size of the frame.
    """

    omitted_nbytes: int

    def __new__(cls, nbytes: int) -> OmittedFrame:
        """Return the replacement of a frame of `nbytes`."""
        frame = super().__new__(cls)
        frame.omitted_nbytes = nbytes
        return frame

"""The type of the table from message class to handler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from .turn import Turn

M = TypeVar("M")
M_contra = TypeVar("M_contra", contravariant=True)


class Handler(Protocol[M_contra]):
    """Handles the messages of one class; the turn has source, stimulus_id, request_id and time."""

    def __call__(self, turn: Turn, message: M_contra, /) -> None: ...


#: Message class -> its handler. ``on`` makes the entries and checks that the two belong together.
Registry: TypeAlias = dict[type[Any], Handler[Any]]


def on(kind: type[M], handler: Handler[M]) -> tuple[type[Any], Handler[Any]]:
    """Return the registry's entry for messages of class ``kind``.

    A ``handler`` of another class is a type error.
    """
    return kind, handler

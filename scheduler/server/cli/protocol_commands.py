"""The commands ``paceline wiretap``, ``decode``, ``encode`` and ``messages``."""

from __future__ import annotations

import sys
from typing import Any, BinaryIO

import click
from paceline.protocol.catalogue import TABLES

from .options import read_key, scheduler_address, tls_options


@click.command()
@click.option(
    "--listen",
    default="tcp://:9786",
    show_default=True,
    help="Address that peers connect to, tcp:// or tls://",
)
@scheduler_address("--forward")
@click.option(
    "--serves",
    type=click.Choice(["scheduler", "worker", "nanny"]),
    default="scheduler",
    show_default=True,
    help="Kind of server at ADDRESS",
)
@click.option(
    "--op", "ops", multiple=True, help="Show only ops that match this name or pattern; repeatable"
)
@click.option("--peer", help="Show only peers whose name or address contains this")
@click.option(
    "--key",
    "pattern",
    help="Show only messages with this key: a pattern, or a tuple such as ('x', 0)",
)
@click.option(
    "--jsonl",
    type=click.Path(dir_okay=False),
    help="Write the messages shown to this file, one JSON document per line",
)
@click.option("--stats", is_flag=True, help="Print counts, bytes and rates per op at the end")
@click.option("--quiet", is_flag=True, help="Print violations only")
@click.option("--color/--no-color", default=None, help="Colors [default: on a terminal]")
@tls_options
def wiretap(
    listen: str,
    address: str,
    serves: str,
    ops: tuple[str, ...],
    peer: str | None,
    pattern: str | None,
    **output: Any,
) -> None:
    """Show the messages between peers and a scheduler, and check them against the catalogue.

    Let workers and clients connect to it instead of the scheduler. Bytes are forwarded unchanged to
    ADDRESS.
    The exit code is 1 if a message violates the catalogue.
    """
    from paceline.scheduler.server.wiretap.command import run
    from paceline.scheduler.server.wiretap.report import Filter

    directions: Any = (f"{serves}_rpc",)
    chosen = Filter(ops, peer, read_key(pattern))
    sys.exit(run(listen, address, serves=directions, chosen=chosen, **output))


@click.command()
@click.argument("file", type=click.File("rb"))
@click.option("--indent", type=int, help="Spaces per level [default: one line per message]")
@click.option("--in-place", is_flag=True, help="The messages use the second encoding")
@click.option(
    "--check",
    "direction",
    type=click.Choice(list(TABLES)),
    metavar="TABLE",
    help="Check the messages against this table of the catalogue, for example worker_to_scheduler",
)
def decode(file: BinaryIO, indent: int | None, in_place: bool, direction: str | None) -> None:
    """Print the messages in FILE (bytes as sent over the network) as JSON."""
    from paceline.protocol.errors import RemoteProtocolError
    from paceline.protocol.framing import FrameReader
    from paceline.protocol.json_form import dumps, frames_to_json, from_json

    reader = FrameReader()
    violations = 0
    try:
        for data in iter(lambda: file.read(2**16), b""):
            for frames in reader.feed(data):
                form = frames_to_json(frames, "in-place" if in_place else "stock")
                click.echo(dumps(form, indent))
                if direction is not None:
                    violations += _check(from_json(form), direction)
    except RemoteProtocolError as error:
        raise click.ClickException(str(error)) from error
    if not reader.is_idle:
        raise click.ClickException("The file ends within a message")
    sys.exit(1 if violations else 0)


def _check(value: Any, direction: str) -> int:
    """Print the violations of a message, or of each message of a batch, and return their number."""
    from paceline.protocol.validation import check_message

    found = [
        violation
        for message in (value if isinstance(value, tuple) else (value,))
        for violation in check_message(message, direction)  # type: ignore[arg-type]
    ]
    for violation in found:
        click.echo(f"!! {violation}", err=True)
    return len(found)


@click.command()
@click.argument("file", type=click.File("r", encoding="utf-8"))
@click.option(
    "--output",
    "-o",
    type=click.File("wb"),
    default="-",
    help="Output file [default: standard output]",
)
@click.option("--in-place", is_flag=True, help="Use the second encoding")
def encode(file: Any, output: BinaryIO, in_place: bool) -> None:
    """Convert the messages in FILE to bytes as sent over the network.

    FILE contains JSON documents as printed by `paceline decode`.
    """
    from paceline.protocol.errors import ProtocolError
    from paceline.protocol.framing import pack_frames
    from paceline.protocol.json_form import documents, json_to_frames

    try:
        for form in documents(file.read()):
            for piece in pack_frames(json_to_frames(form, "in-place" if in_place else "stock")):
                output.write(piece)
    except (ProtocolError, UnicodeDecodeError) as error:
        raise click.ClickException(str(error)) from error


@click.command()
@click.argument("op", required=False)
@click.option(
    "--direction",
    help="Only this table of the catalogue, for example worker_to_scheduler",
)
def messages(op: str | None, direction: str | None) -> None:
    """List the ops of the catalogue, or describe OP (a name or a pattern)."""
    from .catalogue_text import describe_ops, list_ops

    try:
        lines = list_ops(direction) if op is None else describe_ops(op, direction)
        for text in lines:
            click.echo(text)
    except LookupError as error:
        raise click.ClickException(str(error.args[0])) from error


#: Added to ``paceline`` by ``main.py``.
COMMANDS: tuple[click.Command, ...] = (wiretap, decode, encode, messages)

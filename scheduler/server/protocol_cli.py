"""Subcommands of ``paceline`` about the protocol: ``wiretap``, ``decode``, ``encode`` and ``messages``.

Must not know: schedulers; how any of it is done (``wiretap/``, ``protocol.json_form``, ``describing.py``).
"""

from __future__ import annotations

import sys
from typing import Any, BinaryIO

import click

PEM_FILE = click.Path(exists=True, resolve_path=True)


@click.command()
@click.option(
    "--listen",
    default="tcp://:9786",
    show_default=True,
    help="Where peers connect to; tcp:// or tls://",
)
@click.option(
    "--forward",
    required=True,
    help="Where the scheduler listens, as tcp://127.0.0.1:8786 or tls://...",
)
@click.option(
    "--serves",
    type=click.Choice(["scheduler", "worker", "nanny"]),
    default="scheduler",
    show_default=True,
    help="What listens there",
)
@click.option(
    "--op", "ops", multiple=True, help="Show only this op, or what fits this pattern; repeatable"
)
@click.option("--peer", default=None, help="Show only peers whose name or address contains this")
@click.option(
    "--key",
    default=None,
    help="Show only messages that name this task's key: a pattern, or a tuple as ('x', 0)",
)
@click.option(
    "--jsonl",
    type=click.Path(dir_okay=False),
    default=None,
    help="Write what is shown to this file, a JSON document a line",
)
@click.option("--stats", is_flag=True, help="At the end, show counts, bytes and rates per op")
@click.option("--quiet", is_flag=True, help="Print violations only")
@click.option("--color/--no-color", default=None, help="Colours [default: on a terminal]")
@click.option(
    "--tls-ca-file",
    type=PEM_FILE,
    default=None,
    help="CA cert(s) file for TLS (in PEM format), both sides",
)
@click.option(
    "--tls-cert", type=PEM_FILE, default=None, help="certificate file for TLS (in PEM format)"
)
@click.option(
    "--tls-key", type=PEM_FILE, default=None, help="private key file for TLS (in PEM format)"
)
def wiretap(
    listen: str,
    forward: str,
    serves: str,
    ops: tuple[str, ...],
    peer: str | None,
    key: str | None,
    jsonl: str | None,
    stats: bool,
    quiet: bool,
    color: bool | None,
    tls_ca_file: str | None,
    tls_cert: str | None,
    tls_key: str | None,
) -> None:
    """Show what peers and a scheduler say to each other, and hold it against the catalogue.

    Start it, and let workers and clients connect to it instead of to the scheduler. Bytes pass unchanged. The exit code is 1 where
    something was not as the catalogue says.
    """
    from .cli import read_key
    from .wiretap.command import run
    from .wiretap.proxy import TlsFiles
    from .wiretap.report import Filter

    tls = None
    if tls_ca_file or tls_cert or tls_key:
        if not (tls_ca_file and tls_cert):
            raise click.UsageError("TLS needs --tls-ca-file and --tls-cert (and --tls-key)")
        tls = TlsFiles(tls_ca_file, tls_cert, tls_key)
    code = run(
        listen,
        forward,
        tls=tls,
        serves={
            "scheduler": ("scheduler_rpc",),
            "worker": ("worker_rpc",),
            "nanny": ("nanny_rpc",),
        }[serves],  # type: ignore[arg-type]
        chosen=Filter(ops, peer, read_key(key)),
        quiet=quiet,
        jsonl=jsonl,
        stats=stats,
        colour=color,
    )
    sys.exit(code)


@click.command()
@click.argument("file", type=click.File("rb"))
@click.option(
    "--indent", type=int, default=None, help="Spaces a level [default: one line a message]"
)
@click.option("--in-place", is_flag=True, help="The messages are in the second encoding")
@click.option(
    "--check",
    "direction",
    default=None,
    help="Hold them against this table of the catalogue, as worker_to_scheduler",
)
def decode(file: BinaryIO, indent: int | None, in_place: bool, direction: str | None) -> None:
    """Print the messages in FILE (bytes as they are on the wire) as JSON."""
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
        raise click.ClickException("the file ends within a message")
    sys.exit(1 if violations else 0)


def _check(value: Any, direction: str) -> int:
    """Print what is wrong with a message, or with each of a batch. Returns how much."""
    from paceline.protocol.catalogue import TABLES
    from paceline.protocol.checking import check_message

    if direction not in TABLES:
        raise click.UsageError(f"there are the tables {', '.join(TABLES)}")
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
    help="Where the bytes go [default: standard output]",
)
@click.option("--in-place", is_flag=True, help="Write them in the second encoding")
def encode(file: Any, output: BinaryIO, in_place: bool) -> None:
    """Write the messages in FILE (JSON documents, as `paceline decode` prints them) as bytes of the wire."""
    from paceline.protocol.errors import ProtocolError
    from paceline.protocol.framing import pack_frames
    from paceline.protocol.json_form import documents, json_to_frames

    try:
        for form in documents(file.read()):
            for piece in pack_frames(json_to_frames(form, "in-place" if in_place else "stock")):
                output.write(piece)
    except ProtocolError as error:
        raise click.ClickException(str(error)) from error


@click.command()
@click.argument("op", required=False)
@click.option("--direction", default=None, help="Only this table, as worker_to_scheduler")
def messages(op: str | None, direction: str | None) -> None:
    """The catalogue: all ops, or what there is to know of OP (a name or a pattern)."""
    from .describing import describe_ops, list_ops

    try:
        lines = list_ops(direction) if op is None else describe_ops(op, direction)
        for text in lines:
            click.echo(text)
    except LookupError as error:
        raise click.ClickException(str(error.args[0])) from error


#: Added to ``paceline`` by ``cli.py``.
COMMANDS: tuple[click.Command, ...] = (wiretap, decode, encode, messages)

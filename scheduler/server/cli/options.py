"""Arguments and options that several commands share."""

from __future__ import annotations

import ast
import functools
import json
import re
from collections.abc import Callable
from typing import Any, Final

import click

#: The environment variable of the setting ``scheduler-address``, which stock clients read too.
ADDRESS_VARIABLE: Final = "DASK_SCHEDULER_ADDRESS"
#: Ways to name the scheduler, for help texts and errors.
WAYS: Final = "the argument ADDRESS, --address or --scheduler-file"
#: Addresses start with one of these; a key does not.
SCHEMES: Final = ("tcp://", "tls://")
#: An address without a scheme. A key may look like it.
HOST_AND_PORT: Final = re.compile(r"[\w.-]+:\d+")
#: Optional arguments before ADDRESS. The only argument may also be the address.
FIRST_ARGUMENTS: Final = frozenset({"key", "group"})
#: Longest time that options accept, in seconds: a year.
SECONDS_MAX: Final = 366 * 86_400

Command = Callable[..., Any]


class Seconds(click.types.FloatParamType):
    """A time of more than 0 seconds."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        seconds: float = super().convert(value, param, ctx)
        if not 0 < seconds <= SECONDS_MAX:  # false for NaN
            text = f"{value!r} is not a positive number of seconds of at most {SECONDS_MAX}"
            self.fail(text, param, ctx)
        return seconds


def tls_options(command: Command) -> Command:
    """Add the options ``--tls-ca-file``, ``--tls-cert`` and ``--tls-key`` to a command.

    The command receives ``security``, keywords of distributed's ``Security``, or None.
    """
    path = click.Path(exists=True, resolve_path=True)

    @click.option("--tls-ca-file", type=path, help="CA cert(s) file for TLS (in PEM format)")
    @click.option("--tls-cert", type=path, help="certificate file for TLS (in PEM format)")
    @click.option("--tls-key", type=path, help="private key file for TLS (in PEM format)")
    @functools.wraps(command)
    def with_security(
        tls_ca_file: str | None, tls_cert: str | None, tls_key: str | None, **others: Any
    ) -> None:
        names = ("tls_ca_file", "tls_scheduler_cert", "tls_scheduler_key")
        files = dict(zip(names, (tls_ca_file, tls_cert, tls_key)))
        command(security={k: v for k, v in files.items() if v} or None, **others)

    return with_security


def timeout_option(seconds: float) -> Callable[[Command], Command]:
    """Add the option ``--timeout`` with a default of ``seconds`` to a command."""
    text = "Seconds to wait for a reply"
    return click.option("--timeout", type=Seconds(), default=seconds, show_default=True, help=text)


def json_option(command: Command) -> Command:
    """Add the flag ``--json`` to a command, which receives it as ``as_json``."""
    text = "Print all details as JSON"
    return click.option("--json", "as_json", is_flag=True, help=text)(command)


def scheduler_address(*names: str, required: bool = True) -> Callable[[Command], Command]:
    """Add the argument ADDRESS and the options ``--address`` and ``--scheduler-file`` to a command.

    ``names`` are further names of ``--address``. The command receives one parameter, ``address``;
    it is None if none was given and ``required`` is false.
    """

    def decorate(command: Command) -> Command:
        @click.argument("address", required=False)
        @click.option(
            *("--address", *names, "address_option"),
            help="Address of the scheduler, for example tcp://127.0.0.1:8786  "
            f"[env var: {ADDRESS_VARIABLE}]",
        )
        @click.option(
            "--scheduler-file",
            type=click.Path(exists=True, dir_okay=False),
            help="File with the address, written by `paceline --scheduler-file`",
        )
        @functools.wraps(command)
        def with_address(
            address: str | None,
            address_option: str | None,
            scheduler_file: str | None,
            **others: Any,
        ) -> None:
            for name in FIRST_ARGUMENTS & others.keys():
                first = str(others[name])
                if address is None and _is_address(first, address_option, scheduler_file):
                    address, others[name] = first, None
            found = find_address(address, address_option, scheduler_file)
            if found is None and required:
                raise click.UsageError(
                    f"No scheduler address. Pass {WAYS}, or set {ADDRESS_VARIABLE}."
                )
            command(address=found, **others)

        return with_address

    return decorate


def _is_address(text: str, *given: str | None) -> bool:
    """Return whether the only argument is an address, besides those that ``find_address`` takes."""
    if text.startswith(SCHEMES):
        return True
    return HOST_AND_PORT.fullmatch(text) is not None and find_address(*given) is None


def find_address(*given: str | None) -> str | None:
    """Return the address of the argument, the option, or the scheduler file.

    If all are None, return that of the configuration, which includes the environment; None if there
    is none. Raises UsageError.
    """
    from paceline.workers_compat.addressing import split_host_port
    from paceline.workers_compat.config import config

    found = [each for each in given if each is not None]
    if len(found) > 1:
        raise click.UsageError(f"More than one scheduler address. Pass only one of {WAYS}.")
    if found:
        address = found[0] if given[-1] is None else read_scheduler_file(found[0])
    elif not (address := str(config.get("scheduler-address") or "")):
        return None
    try:
        split_host_port(address)
    except ValueError as error:
        text = f"{address!r} is not a scheduler address, for example tcp://127.0.0.1:8786: {error}"
        raise click.UsageError(text) from error
    return address


def read_scheduler_file(path: str) -> str:
    """Return the address in a scheduler file. Raises UsageError if there is none."""
    try:
        with open(path) as file:
            address: str = json.load(file)["address"].strip()
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        text = f"The scheduler file {path} holds no address: {error!r}"
        raise click.UsageError(text) from error
    return address


def read_key(text: str | None) -> Any:
    """Return a key as typed by a user: ``('x', 0)`` is a tuple, anything else a string."""
    if text is None or not text.startswith("("):
        return text
    try:
        key = ast.literal_eval(text)
        hash(key)
    except (ValueError, SyntaxError, TypeError):
        return text
    return key


def read_number_or_bytes(text: str) -> int | float | bytes | None:
    """Return a key that is typed as a number or bytes in Python; None for any other text."""
    try:
        key = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return None
    return key if type(key) in (int, float, bytes) else None

"""The scheduler's address as options of ``status``, ``doctor`` and ``explain``."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from typing import Any, Final

import click
from paceline.workers_compat.config import config

#: The environment variable that stock clients read too.
ADDRESS_VARIABLE: Final = "DASK_SCHEDULER_ADDRESS"
#: Ways to name the scheduler, for help texts and errors.
WAYS: Final = "the argument ADDRESS, --address or --scheduler-file"
#: Addresses start with one of these; a key does not.
SCHEMES: Final = ("tcp://", "tls://")


def scheduler_address(
    required: bool = True,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the argument ADDRESS and the options ``--address`` and ``--scheduler-file`` to a command.

    The command receives one parameter, ``address``; it is None if none was given and ``required``
    is false.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @click.argument("address", required=False)
        @click.option(
            "--address",
            "address_option",
            default=None,
            help="Address of the scheduler, for example tcp://127.0.0.1:8786  "
            f"[env var: {ADDRESS_VARIABLE}]",
        )
        @click.option(
            "--scheduler-file",
            type=click.Path(exists=True, dir_okay=False),
            default=None,
            help="File with the address, written by `paceline --scheduler-file`",
        )
        @functools.wraps(command)
        def with_address(
            address: str | None,
            address_option: str | None,
            scheduler_file: str | None,
            **others: Any,
        ) -> None:
            if "key" in others and address is None and str(others["key"]).startswith(SCHEMES):
                address, others["key"] = others["key"], None
            found = find_address(address, address_option, scheduler_file)
            if found is None and required:
                raise click.UsageError(
                    f"No scheduler address. Pass {WAYS}, or set {ADDRESS_VARIABLE}."
                )
            command(address=found, **others)

        return with_address

    return decorate


def find_address(*given: str | None) -> str | None:
    """Return the scheduler's address.

    The one that was given, or else that of the environment or configuration.

    Args:
        given: the argument, the option and the scheduler file.

    Raises:
        click.UsageError: more than one was given.
        click.ClickException: the scheduler file holds no address.
    """
    if sum(each is not None for each in given) > 1:
        raise click.UsageError(f"More than one scheduler address. Pass only one of {WAYS}.")
    *addresses, scheduler_file = given
    if scheduler_file is not None:
        return read_scheduler_file(scheduler_file)
    for address in addresses:
        if address is not None:
            return address
    return os.environ.get(ADDRESS_VARIABLE) or config.get("scheduler-address") or None


def read_scheduler_file(path: str) -> str:
    """Return the address in a scheduler file.

    Raises:
        click.ClickException: the file cannot be read or holds no address.
    """
    try:
        with open(path) as file:
            address = json.load(file)["address"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise click.ClickException(
            f"The scheduler file {path} holds no address: {error!r}"
        ) from error
    if not isinstance(address, str):
        raise click.ClickException(f"The scheduler file {path} holds no address")
    return address

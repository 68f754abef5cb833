"""Preload modules: what a user wants run in the scheduler's process when it starts and ends.

Stock's own loader is used, so that modules, files, URLs and source text mean what they mean there.

Must not know: the server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click


def validate_argv(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Check options that only a preload's click command can know.

    Raises:
        click.UsageError: there is no preload to take them, or it refuses them.
    """
    if not value and not ctx.params.get("preload"):
        return value
    from distributed.preloading import validate_preload_argv

    return validate_preload_argv(ctx, param, value)


def load(scheduler: Any, preload: str | Sequence[str], argv: Sequence[Any]) -> Any:
    """Import the preload modules; the result has ``start()`` and ``teardown()`` coroutines.

    Args:
        scheduler: what ``dask_setup`` and ``dask_teardown`` receive.
        preload: module names, paths, URLs or source texts.
        argv: arguments for a click-decorated ``dask_setup``.
    """
    from distributed.preloading import process_preloads

    return process_preloads(scheduler, preload, argv)

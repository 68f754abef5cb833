"""Preload modules: user code that runs in the scheduler's process when it starts and ends.

They are loaded with stock's loader, so that modules, files, URLs and source text have the same
meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click
from distributed.preloading import process_preloads, validate_preload_argv

#: Validate options for a preload's click command. Raise click.UsageError, also without one.
validate_argv: Callable[[click.Context, click.Parameter, Any], Any] = validate_preload_argv
#: Import modules, given the argument of their ``dask_setup``, their names, paths, URLs or source
#: texts, and arguments for a click-decorated ``dask_setup``. The result has the coroutines
#: ``start()`` and ``teardown()``.
load: Callable[[Any, str | Sequence[str], Sequence[Any]], Any] = process_preloads

"""``paceline replay``: replay a journal and compare the output with that of the recorded run."""

from __future__ import annotations

import sys

import click

from .options import read_key


@click.command("replay")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--until", type=click.IntRange(min=0), help="Stop after this number of stimuli")
@click.option("--print", "show", is_flag=True, help="Print each stimulus and its outputs")
@click.option(
    "--key", help="Print only stimuli and outputs with this key, and its story at the end"
)
def command(file: str, until: int | None, show: bool, key: str | None) -> None:
    """Replay a journal in a new core and print a hash of all outputs."""
    from paceline.scheduler.core.inspection import queries
    from paceline.scheduler.server.journal.replay import replay
    from paceline.scheduler.server.journal.values import JournalError

    wanted = read_key(key)
    try:
        report = replay(file, until=until, show=click.echo if show or key else None, key=wanted)
    except JournalError as error:
        raise click.ClickException(str(error)) from error
    if wanted is not None:
        for line in queries.story(report.core.state, wanted):
            click.echo(repr(line))
    for number, text in report.errors:
        click.echo(f"Stimulus {number} failed: {text}")
    click.echo(f"Recorded by paceline {report.release}")
    click.echo(f"{report.n_stimuli} stimuli ({report.ending})")
    differs = f"differ from those of the run after stimulus {report.differs_after}"
    same = report.differs_after is None
    click.echo(f"The outputs {'are the same as in the run' if same else differs}.")
    click.echo(f"Hash of the outputs: {report.digest}")
    if report.errors:
        sys.exit(1)

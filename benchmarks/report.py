"""Format measurements as Markdown tables and insert them into a documentation page."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

from .latency import Latencies, Sizes
from .per_task import Case, Measured
from .quality import Quality, mean_ratio

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"

Row = tuple[Case, Measured, Measured]  # case, stock, paceline


def ratio(ours: float, theirs: float) -> str:
    """Return `ours / theirs` as text, or "-" if `theirs` is 0."""
    return f"{ours / theirs:.2f}" if theirs > 0 else "-"


def machine() -> str:
    """Return one line with processor, cores, Python and package versions."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = [ln for ln in cpuinfo.read_text().splitlines() if ln.startswith("model name")]
        model = lines[0].split(":", 1)[1].strip() if lines else model
        model += f", {len(lines)} cores"
    names = ("distributed", "dask", "msgspec", "uvloop")
    versions = ", ".join(f"{name} {version(name)}" for name in names)
    return f"{model}; Python {platform.python_version()}; {versions}."


def table(rows: Iterable[Row]) -> str:
    """Return a table that compares both schedulers. Ratios are paceline / stock."""
    head = (
        "| graph | tasks | workers | stock µs | paceline µs | event loop µs | compile µs | ratio "
        "| ratio, event loop | stock bytes | paceline bytes | ratio "
        "| stock wall µs | paceline wall µs |\n"
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n"
    )
    lines = []
    for case, stock, ours in rows:
        cells = [
            case.shape,
            f"{case.tasks:,}",
            f"{case.workers:,}",
            f"{stock.total_us:.0f}",
            f"{ours.total_us:.0f}",
            f"{ours.loop_us:.0f}",
            f"{ours.other_us:.0f}",
            ratio(ours.total_us, stock.total_us),
            ratio(ours.loop_us, stock.loop_us),
            f"{stock.loop_nbytes:,.0f}",
            f"{ours.loop_nbytes:,.0f}",
            ratio(ours.loop_nbytes, stock.loop_nbytes),
            f"{stock.wall_us:.0f}",
            f"{ours.wall_us:.0f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return head + "\n".join(lines) + "\n"


def flatness(rows: list[Row]) -> str:
    """Return a sentence with the ratio of the largest to the smallest cost per task in `rows`."""
    ours = [measured.total_us for _, _, measured in rows]
    stock = [measured.total_us for _, measured, _ in rows]
    spread = [f"{max(costs) / max(min(costs), 1e-9):.2f}" for costs in (stock, ours)]
    return f"Largest / smallest cost per task: stock {spread[0]}, paceline {spread[1]}."


def latency(sizes: Sizes, stock: Latencies, ours: Latencies) -> str:
    """Return a table of latencies, stalls and memory growth, one row each."""
    large, each = f"{sizes.large_graph:,}", sizes.gather_each_nbytes / 1e6
    lines = [
        ("submission to result of one task, median, ms", "submit_median_ms"),
        ("submission to result of one task, 95th percentile, ms", "submit_p95_ms"),
        (f"chain of {sizes.chain} futures, ms", "chain_ms"),
        (f"graph of {large} tasks on zero workers, submission to result, s", "large_graph_s"),
        ("longest wait of a second client meanwhile, ms", "stall_max_ms"),
        ("longest wait of a second client while the graph is released, ms", "release_stall_max_ms"),
        (f"gather of {sizes.gather_count} x {each:.0f} MB through the scheduler, s", "gather_s"),
        ("growth of the scheduler process during the gather, MB", "gather_peak_mb"),
    ]
    text = "**Latency and stalls**, two real workers with one thread each "
    text += "(zero workers for the large graph):\n\n"
    text += "| | stock | paceline | ratio |\n|---|--:|--:|--:|\n"
    for title, name in lines:
        a, b = getattr(stock, name), getattr(ours, name)
        text += f"| {title} | {a:.1f} | {b:.1f} | {ratio(b, a)} |\n"
    return text


def quality(title: str, found: dict[str, tuple[Quality, Quality]], layout: tuple[int, int]) -> str:
    """Return a table of data transferred, memory and time, one row per program.

    The last row has the geometric means of the ratios.
    """
    heads = {
        "transferred, MB": "transferred_mb",
        "peak managed memory, MB": "managed_mb",
        "growth of workers, MB": "process_mb",
        "time, s": "seconds",
    }
    workers, threads = layout
    text = f"**Quality of schedules**, {title}; workers: {workers}, threads of each: {threads}; "
    text += "medians:\n\n"
    titles = " | ".join(f"{head}: stock | paceline | ratio" for head in heads)
    text += f"| program | {titles} |\n"
    text += "|---|" + "--:|--:|--:|" * len(heads) + "\n"
    for program, (stock, ours) in found.items():
        cells = [program]
        for name in heads.values():
            a, b = getattr(stock, name), getattr(ours, name)
            cells += [f"{a:.2f}", f"{b:.2f}", ratio(b, a)]
        text += "| " + " | ".join(cells) + " |\n"
    means = [f"{mean_ratio(found.values(), name):.2f}" for name in heads.values()]
    text += "| geometric mean | | | " + " | | | ".join(means) + " |\n"
    return text


def write(page: Path, parts: list[str]) -> None:
    """Replace the text between the markers of `page` with `parts`.

    Raises ValueError if the page has no markers.
    """
    text = page.read_text()
    if BEGIN not in text or END not in text:
        raise ValueError(f"{page} lacks the markers {BEGIN} and {END}")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    page.write_text(f"{before}{BEGIN}\n{machine()}\n\n" + "\n".join(parts) + f"{END}{after}")

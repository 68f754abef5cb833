"""Annotations of tasks."""

from __future__ import annotations

from paceline.scheduler.core.stimuli import AnnotationSet


def on(worker: str, *keys: str) -> dict[str, AnnotationSet]:
    """Restrict `keys` to that worker."""
    return dict.fromkeys(keys, AnnotationSet(workers=[worker]))

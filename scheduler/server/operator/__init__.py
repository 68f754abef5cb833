"""What people look at in a terminal: ``paceline status`` and ``paceline doctor``.

Must not know: the core; they ask a running scheduler as anybody could.
"""

"""``python -m paceline.scheduler``: what the command ``paceline`` does.

Must not know: what that is.
"""

from paceline.scheduler.server.cli import main

if __name__ == "__main__":
    main(prog_name="paceline")

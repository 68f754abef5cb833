"""Run the command ``paceline``, for ``python -m paceline.scheduler``."""

from paceline.scheduler.server.cli.main import main

if __name__ == "__main__":
    main(prog_name="paceline")

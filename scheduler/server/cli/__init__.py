"""The command ``paceline``: one module per group of subcommands."""

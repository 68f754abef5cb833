"""The log: its files, its records, and the comm whose input and output are recorded."""

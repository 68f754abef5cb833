"""Standbys: copies of the scheduler process, and their snapshots for other releases."""

"""Facts about workers besides ``WorkerState``: loads, ends, steals, reservations."""

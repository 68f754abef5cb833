"""What is known of workers besides ``WorkerState``: loads, ends, steals, reservations."""

"""Real scheduler, worker and client processes."""

"""The keeper process: it starts, watches, replaces and outlives scheduler processes."""

"""The process: garbage collection, child processes, loop lag, metrics, shutdown notices."""

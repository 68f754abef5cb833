"""The scheduler process: connections, HTTP, command line."""

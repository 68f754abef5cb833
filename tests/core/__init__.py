"""The scheduling decisions, without sockets or processes."""

"""The channel between keeper and scheduler processes: messages, sockets, shared memory, deaths."""

"""What the keeper shares with the scheduler process: messages, memory, sockets, deaths."""

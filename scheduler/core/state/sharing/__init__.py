"""Fair sharing: share groups, accounts of clients, and the queue of tasks by group."""

"""Graph compilers: child processes, or threads, that turn a client's graph into rows of tasks."""

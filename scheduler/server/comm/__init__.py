"""Comms: listeners and connections for tcp, tls, web sockets, and distributed's own comms."""

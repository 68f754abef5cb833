"""Requests with several steps: gather, scatter, retire and others."""

"""Hostile peers."""

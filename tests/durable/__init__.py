"""Tests of the log, of recovery from it, and of a scheduler that is killed."""

"""Tests of paceline; ``tests/support`` has what several folders share."""

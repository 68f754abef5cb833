"""The transfer of results between workers."""

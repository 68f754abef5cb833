"""What a scheduler process does to continue the one before it."""

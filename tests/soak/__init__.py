"""Long runs under faults and with many clients."""

"""The scheduler's state and the handlers of stimuli: synchronous, deterministic, without I/O."""

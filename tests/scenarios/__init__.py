"""Text files of stimuli and the messages they must cause."""

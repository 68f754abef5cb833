"""The journal of stimuli: writing, reading and replaying it."""

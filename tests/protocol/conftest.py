"""Settings of the protocol's tests."""

from hypothesis import settings

# a busy machine must not fail a property
settings.register_profile("paceline", deadline=None)
settings.load_profile("paceline")

"""Configuration, preloads and supported versions."""

"""TLS settings, the shared secret, and control over deserialization."""

"""distributed's own test suite on paceline."""

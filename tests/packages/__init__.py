"""Third-party packages on paceline."""

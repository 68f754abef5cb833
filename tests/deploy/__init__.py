"""Deployment tools that start paceline."""

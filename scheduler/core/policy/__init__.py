"""Scheduling decisions: placement, memory management, rebalancing and scaling."""

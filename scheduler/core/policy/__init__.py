"""Scheduling decisions: placement, stealing, memory management, rebalancing and scaling."""

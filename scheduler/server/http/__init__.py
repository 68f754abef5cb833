"""The HTTP server of the scheduler: health, metrics, JSON and the dashboard's pages."""

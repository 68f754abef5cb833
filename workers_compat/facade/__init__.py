"""Views of the scheduler for plugins and functions written for distributed's ``Scheduler``."""

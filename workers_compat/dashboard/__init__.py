"""distributed's Bokeh dashboard over paceline.

In the scheduler's process (``embedded``), or in a process of its own.
"""

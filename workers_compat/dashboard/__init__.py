"""distributed's Bokeh dashboard over paceline: in the scheduler's process (``embedded``), or in a process of its own.

Must not know: how pages reach a browser.
"""

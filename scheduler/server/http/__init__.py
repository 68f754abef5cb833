"""What the scheduler serves over HTTP: health, metrics, a plain page.

Must not know: connections of workers and clients; never changes the state.
"""

"""The state of the scheduler: data structures without scheduling decisions."""

"""Speed of moving task results: stock transfer, Redis in the tasks, and each backend of `transfer`.

`python -m benchmarks.transfer --scale 0.05` runs a graph whose results have the sizes of a real
workload.
"""

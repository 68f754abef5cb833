"""How fast task results move: stock transfer, Redis by hand, and each back end of ``transfer``, side by side.

``python -m benchmarks.transfer --scale 0.05`` runs a graph whose results have the sizes of a real workload.
"""

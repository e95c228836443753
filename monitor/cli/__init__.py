"""The command line `firsttoken`: the only place where everything meets.

Exit codes: 0 good, 1 a probe failed, 2 bad usage or configuration.
"""

"""Is it right, does it help: backtest on later failures, steered jobs against the control group.

Takes a History and logged decisions, gives figures with intervals. Read first: backtest.
"""

"""Scores into the published files: nightly, and suspects at each collect.

Takes rows of scores, gives scores.json, avoid.lua and metrics. Read first: refresh.
"""

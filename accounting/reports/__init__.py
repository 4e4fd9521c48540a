"""Telling people: the report, a node's story, who broke a job, metrics.

Takes a History, scores and decisions, gives words and pages. Read first: contents.
"""

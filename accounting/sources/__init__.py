"""Readers of accounting: sacct, dumps, JSON, pyslurm, node events, the inventory.

Take what Slurm or a file says, give rows and records of one kind. Read first: records.
"""

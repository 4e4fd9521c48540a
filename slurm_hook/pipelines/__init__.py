"""Stages chained by --dependency: the manifest of `workhorse submit`, and the view of the queue.

Takes manifests and jobs, gives sbatch calls and rows. Read first: pipeline.
"""

"""The submit path of slurm-workhorse: which nodes a job may use, decided at submission.

Standard library only, Python 3.9 and later: this half runs on login nodes that have nothing else.
"""

__version__ = "0.1.0"

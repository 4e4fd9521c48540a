"""The accounting half of slurm-workhorse: sacct, a history in SQLite, and how well each node carries heavy work."""

"""What Slurm is asked and what it answers: sbatch's options, nodes, jobs, pending reasons; the only room that runs its commands.

Takes arguments and deadlines, gives records. Read first: request (a call's options), cluster (nodes), jobs (the queue).
"""

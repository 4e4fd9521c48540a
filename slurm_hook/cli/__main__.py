"""`python -m slurm_hook.cli`."""

from . import main

main()

"""The accounting half's commands, one file each; `slurm_hook.cli.group` loads them by name.

Take words of a command line, give text or JSON. Read first: collect.
"""

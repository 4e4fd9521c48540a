"""The submit path: what the sbatch shim and the cli_filter ask in a child process.

Takes a call, gives the options to add, in bounded time. Standard library only. Read first: wrapper.
"""

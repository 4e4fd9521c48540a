# ruff: noqa: E501 - tables
"""Generated calls of sbatch, each once plain and once through the wrapper, against a real Slurm; what differs is told.

`python -m tests.fuzz --pairs N --seed S` runs them. Read `call` first: what a call is made of; `making` draws one, `running` makes
it, `records` looks up what became of it, `allowed` holds what may differ and why, `shrink` finds the least that still differs.
"""

"""Tests of slurm-workhorse; `tests.sandbox` is the throwaway Slurm that the integration tests run against."""

"""What every other room uses: settings, errors, node lists, words for terminals, bounded commands, light records.

Takes nothing of Slurm's and gives plain values; imports nothing above it. Read first: config.
"""

"""Which nodes a job may use, and why: pure, but for the seed it is given.

Takes a Case (request, scores, live state), gives a Decision. Read first: decide.
"""

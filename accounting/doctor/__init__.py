"""Everything that can be wrong on a site, with the mend.

Takes a host, gives answers by check. Read first: checks.
"""

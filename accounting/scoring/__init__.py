"""How well each node stands heavy load: exposure, who broke what, capability, lemons.

Takes a History and settings, gives a row per node. Read first: score, then attributed_method.
"""

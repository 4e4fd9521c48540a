"""Jobs that wait: which excludes each should have now, once a minute.

Takes the queue and the scores, gives live.json and ExcNodeLists. Read first: passes, then updates (what a pass decides).
"""

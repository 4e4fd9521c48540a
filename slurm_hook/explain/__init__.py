"""Why a job got its nodes: from its mark, the log and the archived scores, the same draw made again.

Takes a job's facts, gives sentences. Read first: job.
"""

"""The contract between the halves: scores.json, live.json, the table for Lua, marks in Comments, the log of decisions.

Takes records and gives files and text, and the same back, checked: whoever reads trusts nothing that others can write.
Read first: snapshot.
"""

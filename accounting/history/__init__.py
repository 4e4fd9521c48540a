"""The task history in SQLite: written in bulk, read back as columns.

Takes records, gives `columns.History`, what the scorer reads. Read first: schema, then columns_reader.
"""

"""Readers of other people's files: where a checkpoint lies, what is in it, how its text becomes ids.

Nothing here imports model code, and nothing here is taught by a chapter before the tenth.
"""

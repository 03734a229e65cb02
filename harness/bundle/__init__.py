"""A run in one file, to be sent to somebody else: packed without secrets, unpacked without trust."""

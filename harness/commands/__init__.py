"""One module a command: each joins the parts and returns an `Answer`; only cli.py prints."""

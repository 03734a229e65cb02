"""From verdicts to Markdown, figures and JSON; same input, same bytes."""

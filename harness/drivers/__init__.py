"""Programs that run inside an arm's interpreter and speak the event protocol (standard library and the engine only)."""

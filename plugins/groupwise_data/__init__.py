"""Data: prompts from files, folders, tables and the hub, by the library `datasets`."""

"""OpenEnv: environments behind a server, and sessions that OpenEnv's own code makes."""

"""Loading and saving weights, whole or sharded, and handing them to an engine."""

"""Kit: what authors of plugins import besides the contract: errors, options, processes, memory."""

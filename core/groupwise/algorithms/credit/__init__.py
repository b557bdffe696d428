"""Credit over turns: the advantages of the turns of an episode, one file for each formula."""

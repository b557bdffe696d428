"""What a person sees of a run: on a terminal, in a log and in a notebook."""

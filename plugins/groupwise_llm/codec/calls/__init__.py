"""The calls of tools in a turn, read from its text in the form that the model was taught."""

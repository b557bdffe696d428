"""Messages: chats and what they hold, for all who read or write them.

A package without plugins. `completion` reads the text of a completion and the answer in it,
`wording` makes prompts of the columns of a row,
`pictures` is how the core copies and stores those of Pillow.
"""

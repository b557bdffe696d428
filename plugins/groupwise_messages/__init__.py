"""Messages: chats and what they hold, for all who read or write them.

A package without plugins. `texts` and `completion` read messages, `thinking` and the answer in
them, `wording` makes prompts of the columns of a row, and `pictures` is how the core copies and
stores those of Pillow.
"""

"""Messages: chats and what they hold, for all who read or write them.

A package without plugins. `texts` and `completion` read messages, and by `thinking` the answer in
them; `escape` writes names of tokens in what others wrote as words; `wording` makes prompts of the
columns of a row; `images` opens what is attached as pictures, and `pictures` is how the core copies
and stores those of Pillow. `video` is what policies for videos make: frames in one array.
"""

"""Vision: pictures in the contexts of a language model.

The tokens of a picture have ids of their own (`picture`). So a context is plain ids, and shared
prompts, packing, holes, the cache between turns and micro-batches need no code for pictures.
`PicturedModel` is a `CausalModel` with another answer to two questions:

- *What do the layers read?* Embedded tokens, and in the places of pictures rows of a table of
  features. The tower makes it before the layers run, from the pictures that `showing` names: of a
  frozen tower once for each picture, kept until other pictures need the room; of one that learns in
  every training pass, once for each picture.
- *Which positions do tokens have?* With M-RoPE (arXiv 2409.12191) tokens of a picture have a row
  and a column, and what follows stands after the larger extent. Both follow from ids: a token's
  position is the sum of the advances of all tokens before it, plus an offset. Every pass has as
  many positions as a text would, and the sums of (advance - 1) on top; a cached row goes on at the
  sum of the advances of its context.

A pass of one token per row, and every pass of a run without pictures, is that of a model of text.
Tokens that stand for pictures have a bias of -1e30 on their logits in sampling and in training, so
they are never drawn, and log-probs are those of the distribution drawn from. Rollouts hold the
pixels of their pictures as a tensor of bytes (`Album.packed`), so selections, checkpoints and
replay keep them; `Album` prepares them again where they have been dropped. A picture is never cut:
`long_prompts: cut` is refused.
"""

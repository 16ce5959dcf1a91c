"""What keeps the book true: shape comments, quotes, notebooks in normal form, the graders' proof."""

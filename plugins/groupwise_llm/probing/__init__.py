"""What a model allows where it lies, found out by trying."""

"""Families: vision-language architectures that are built in, one file each."""

"""Groupwise's report: HTML pages of runs and evaluations, made from the files in their folders."""

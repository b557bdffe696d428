"""A controller that steers a point mass, trained by Groupwise."""

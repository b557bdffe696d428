"""A pipeline's folder: what it holds, loading it whole or sharded, saving the trained model."""

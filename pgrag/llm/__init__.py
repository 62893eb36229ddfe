"""Models: the keyless embedder that runs in-process, and the ways to model servers."""

"""Training of drafters on a laptop, on the answers of their verifier."""

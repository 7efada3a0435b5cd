"""EAGLE-3 heads, which read hidden states of several verifier layers."""

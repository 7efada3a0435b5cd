"""Recurrent heads on the last hidden state of the verifier."""

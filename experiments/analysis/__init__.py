"""Frames that compare the points of a sweep, without a page or a model."""

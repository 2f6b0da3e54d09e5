"""Profiles to tables, figures and the explorer's panel."""

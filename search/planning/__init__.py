"""Decides what to do next from everything that happened, and repeats these decisions in a
simulation or a verification. No state is stored here.
"""

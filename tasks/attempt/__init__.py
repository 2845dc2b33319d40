"""One attempt of a trial: find the trainable, restore, train, save, and return the outcome as a
value.
"""

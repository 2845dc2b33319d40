"""One attempt of a trial: find the trainable, restore, train, save; its outcome is a value."""

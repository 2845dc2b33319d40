"""Running an external program (`command:`) as a trainable: started, monitored, and ended with its
attempt.
"""

"""RLlib's algorithms as trials: configurations, checks, steps. RLlib is imported inside of
functions only: it takes 4 s.
"""

"""RLlib's algorithms as trials. RLlib is imported inside of functions only: it takes 4 s."""

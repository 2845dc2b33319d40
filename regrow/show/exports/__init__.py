"""Exports of an experiment: data frames, CSV, Parquet, TensorBoard, an Optuna database."""

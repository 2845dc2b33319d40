"""An experiment in the forms that other tools read: data frames, CSV, Parquet, TensorBoard, a database of Optuna's."""

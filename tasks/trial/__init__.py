"""The `Trial` object that user code sees, and the processing of its reports."""

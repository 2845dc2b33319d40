"""Images, tables, figures, texts and files that a training logs. Knows the store, and no trial."""
